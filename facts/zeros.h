/** \file
 * From which zeros on code that skips them is worth it. Plans, the libraries that find PolyKernels and Python go by
 * these numbers (docs/sparse_weights.md).
 */
#ifndef DISTILE_FACTS_ZEROS_H
#define DISTILE_FACTS_ZEROS_H

/** The least share of the weights that are 0. */
#define DISTILE_LEAST_ZEROS .5
/** With 16-bit weights, GPUs read a bitmap: the least share for it, and the most tokens of a call, as measured on an
 * H200 beside cuBLAS. */
#define DISTILE_LEAST_BITMAP_ZEROS .9
#define DISTILE_MOST_BITMAP_TOKENS 8

#endif
