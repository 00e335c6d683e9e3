// The PTX of wgmma.mma_async for each shape: register lists and operand numbers.  Only wgmma.h includes this.
//
// In the text, operands 0 .. N/2-1 are the accumulators; what follows gets the next numbers.
#pragma once

// Accumulators from i on, as asm operands of constraint c ("f" or "r").
#define SIMT_WG_4(c, i) "+" c(d[i]), "+" c(d[(i) + 1]), "+" c(d[(i) + 2]), "+" c(d[(i) + 3])
#define SIMT_WG_8(c, i) SIMT_WG_4(c, i), SIMT_WG_4(c, (i) + 4)
#define SIMT_WG_16(c, i) SIMT_WG_8(c, i), SIMT_WG_8(c, (i) + 8)
#define SIMT_WG_32(c, i) SIMT_WG_16(c, i), SIMT_WG_16(c, (i) + 16)
#define SIMT_WG_48(c, i) SIMT_WG_32(c, i), SIMT_WG_16(c, (i) + 32)
#define SIMT_WG_64(c, i) SIMT_WG_32(c, i), SIMT_WG_32(c, (i) + 32)
#define SIMT_WG_80(c, i) SIMT_WG_64(c, i), SIMT_WG_16(c, (i) + 64)
#define SIMT_WG_96(c, i) SIMT_WG_64(c, i), SIMT_WG_32(c, (i) + 64)
#define SIMT_WG_128(c, i) SIMT_WG_64(c, i), SIMT_WG_64(c, (i) + 64)

// The same in the text.
#define SIMT_WG_LIST_4 "%0,%1,%2,%3"
#define SIMT_WG_LIST_8 SIMT_WG_LIST_4 ",%4,%5,%6,%7"
#define SIMT_WG_LIST_16 SIMT_WG_LIST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define SIMT_WG_LIST_32 SIMT_WG_LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SIMT_WG_LIST_48 SIMT_WG_LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define SIMT_WG_LIST_64 SIMT_WG_LIST_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SIMT_WG_LIST_80 SIMT_WG_LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define SIMT_WG_LIST_96 SIMT_WG_LIST_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define SIMT_WG_LIST_112 \
  SIMT_WG_LIST_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define SIMT_WG_LIST_128 \
  SIMT_WG_LIST_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// Both operands in shared memory.  p1 .. : the numbers of the operands after the accumulators.
#define SIMT_WG_SS(n, regs, p0, p1, p2, p3, p4, p5, c, types, tail)                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n types \
               " {" SIMT_WG_LIST_##regs "}, %" #p0 ", %" #p1 ", p" tail ";\n}"                             \
               : SIMT_WG_##regs(c, 0)                                                                      \
               : "l"(da), "l"(db), "r"(accumulate));
// A in registers.
#define SIMT_WG_RS(n, regs, p0, p1, p2, p3, p4, p5, c, types, tail)                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n types  \
               " {" SIMT_WG_LIST_##regs "}, {%" #p0 ",%" #p1 ",%" #p2 ",%" #p3 "}, %" #p4 ", p" tail ";\n}" \
               : SIMT_WG_##regs(c, 0)                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(accumulate));

// The statement for the template parameter N.
#define SIMT_WG_ANY_N(form, c, types, tail)                      \
  if constexpr (N == 8) {                                        \
    form(8, 4, 4, 5, 6, 7, 8, 9, c, types, tail)                 \
  } else if constexpr (N == 16) {                                \
    form(16, 8, 8, 9, 10, 11, 12, 13, c, types, tail)            \
  } else if constexpr (N == 32) {                                \
    form(32, 16, 16, 17, 18, 19, 20, 21, c, types, tail)         \
  } else if constexpr (N == 64) {                                \
    form(64, 32, 32, 33, 34, 35, 36, 37, c, types, tail)         \
  } else if constexpr (N == 96) {                                \
    form(96, 48, 48, 49, 50, 51, 52, 53, c, types, tail)         \
  } else if constexpr (N == 128) {                               \
    form(128, 64, 64, 65, 66, 67, 68, 69, c, types, tail)        \
  } else if constexpr (N == 160) {                               \
    form(160, 80, 80, 81, 82, 83, 84, 85, c, types, tail)        \
  } else if constexpr (N == 192) {                               \
    form(192, 96, 96, 97, 98, 99, 100, 101, c, types, tail)      \
  } else if constexpr (N == 256) {                               \
    form(256, 128, 128, 129, 130, 131, 132, 133, c, types, tail) \
  }
