// What every launcher of a CUDA kernel shares with its caller.  No CUDA header is needed to call one.
#pragma once

namespace inferx::cuda {

// Launchers return a cudaError_t as an int; 0 is success.
using Error = int;
constexpr Error kSuccess = 0;

const char* error_string(Error error);
Error device_count(int* count);

}  // namespace inferx::cuda
