// Loads and stores of 16, 8 and 4 bytes at once.  The address must be a multiple of the size.
#pragma once
#include "simt/platform.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
void check_aligned(const void* p, size_t bytes, Site at);
// The checked build: the whole vector is checked, also where the compiler would load only what is used of it.
void load_vector(void* to, const void* from, size_t bytes, Site at);
void store_vector(void* to, const void* from, size_t bytes, Site at);
}  // namespace host
#endif

#ifdef SIMT_GPU
// Written out: through a pointer, nvcc splits a vector store into stores of its fields where another branch
// stores the same values one by one (tools/kernel_report.py found it).
SIMT_DEV void store_whole(void* p, uint4 v) {
  asm volatile("st.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
SIMT_DEV void store_whole(void* p, uint2 v) {
  asm volatile("st.v2.b32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
SIMT_DEV void store_whole(void* p, uint32_t v) { *static_cast<uint32_t*>(p) = v; }
#endif

template <class Vector, class T>
SIMT_DEV Vector load_vector(const T* p SIMT_ATP) {
#ifdef SIMT_CPU
  host::check_aligned(p, sizeof(Vector), at);
#endif
#ifdef __SANITIZE_THREAD__
  Vector v;
  host::load_vector(&v, p, sizeof v, at);
  return v;
#else
  return *reinterpret_cast<const Vector*>(p);
#endif
}
template <class Vector, class T>
SIMT_DEV void store_vector(T* p, Vector v SIMT_ATP) {
#ifdef SIMT_CPU
  host::check_aligned(p, sizeof(Vector), at);
#endif
#ifdef __SANITIZE_THREAD__
  host::store_vector(p, &v, sizeof v, at);
#elif defined(SIMT_GPU)
  store_whole(p, v);
#else
  *reinterpret_cast<Vector*>(p) = v;
#endif
}

template <class T>
SIMT_DEV uint4 ld16(const T* p SIMT_ATP) {
  return load_vector<uint4>(p SIMT_PASS);
}
template <class T>
SIMT_DEV void st16(T* p, uint4 v SIMT_ATP) {
  store_vector(p, v SIMT_PASS);
}
template <class T>
SIMT_DEV uint2 ld8(const T* p SIMT_ATP) {
  return load_vector<uint2>(p SIMT_PASS);
}
template <class T>
SIMT_DEV void st8(T* p, uint2 v SIMT_ATP) {
  store_vector(p, v SIMT_PASS);
}
template <class T>
SIMT_DEV uint32_t ld4(const T* p SIMT_ATP) {
  return load_vector<uint32_t>(p SIMT_PASS);
}
template <class T>
SIMT_DEV void st4(T* p, uint32_t v SIMT_ATP) {
  store_vector(p, v SIMT_PASS);
}

// Global data that is read once, and by no thread written during the launch: it passes the L1 by.
template <class T>
SIMT_DEV uint4 ld16_stream(const T* p SIMT_ATP) {
#ifdef SIMT_GPU
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#else
  return ld16(p SIMT_PASS);
#endif
}
// Global data that is not read again soon: first to leave the caches.
template <class T>
SIMT_DEV void st16_stream(T* p, uint4 v SIMT_ATP) {
#ifdef SIMT_GPU
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
#else
  st16(p, v SIMT_PASS);
#endif
}

}  // namespace simt

#ifdef SIMT_CPU
// CUDA's loads and stores with a cache hint.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
#endif
