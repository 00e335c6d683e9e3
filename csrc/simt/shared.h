// Shared memory.
//   SHARED(float, partial, [4][32]);    __shared__ float partial[4][32]
//   SHARED(int, total, );               a single variable
//   DYN_SHARED(buffer, 128);            the launch's dynamic shared memory, as unsigned char*, 128-byte
//   aligned
#pragma once
#include "simt/platform.h"

#ifdef SIMT_GPU

#define SHARED(T, name, dims) __shared__ T name dims
#define DYN_SHARED(name, align)      \
  extern __shared__ __align__(align) \
  unsigned char name[]

#else

namespace simt::host {
void* static_shared(const void* key, size_t bytes, size_t align, const char* name, SIMT_AT);
void* dynamic_shared(size_t align, SIMT_AT);
}  // namespace simt::host
#define SHARED(T, name, dims)                                                           \
  static const char simt_key_##name = 0;                                                \
  using simt_type_##name = T dims;                                                      \
  simt_type_##name& name = *static_cast<simt_type_##name*>(::simt::host::static_shared( \
      &simt_key_##name, sizeof(simt_type_##name), alignof(simt_type_##name), #name))
#define DYN_SHARED(name, align) \
  unsigned char* const name = static_cast<unsigned char*>(::simt::host::dynamic_shared(align))

#endif

namespace simt {

// A generic pointer as a 32-bit address of the shared window, as PTX takes it.
#ifdef SIMT_GPU
SIMT_DEV uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
#else
namespace host {
uint32_t smem_u32(const void* p, Site at);
}
inline uint32_t smem_u32(const void* p, SIMT_AT) { return host::smem_u32(p, at); }
#endif

}  // namespace simt
