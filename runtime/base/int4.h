/** \file
 * Integers of 4 bits, from -8 to 7, two a byte. Only filters have them.
 */
#ifndef DISTILE_INT4_H
#define DISTILE_INT4_H

#include <cstddef>
#include <cstdint>

namespace distile {

/** Numbers in the caller's order, as in ONNX: the first of two is the low half of a byte. */
void int4_to_float(const void *from, float *to, size_t count);
void int4_from_bytes(const int8_t *from, void *to, size_t count);

/** The numbers that code for dot products unpacks at a time. */
constexpr size_t int4_block = 128;

/** Numbers in the order in which code for dot products reads them: 64 bytes hold a block, its first 64 numbers in their
 * low halves. The numbers are whole blocks. */
void int4_blocks_from_float(const float *from, void *to, size_t count);

}  // namespace distile

#endif
