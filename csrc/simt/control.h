// How the bindings and tests drive the executor.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
void simt_config(const char* key, long value);
int simt_instrumented();
void simt_stats(uint64_t* out);
int simt_failed();
const char* simt_error();
void simt_fence(void* data, size_t bytes, int writable);
void simt_unfence();
}
