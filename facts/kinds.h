/** \file
 * The kinds of operators, one row each:
 *
 *     ROW(number, NAME, name, parameters)
 *
 * The number is that of DISTILE_MASKED_NAME, a distile_operator_kind. "masked_name" is what operator files, messages
 * and Python call it, and `parameters` the struct that a descriptor's `op` points to. The runtime's OperatorKind is
 * name_kind. Whoever names, numbers or lists kinds expands this table.
 */
#ifndef DISTILE_FACTS_KINDS_H
#define DISTILE_FACTS_KINDS_H

/* A row has one line, which write_python.cmake reads. */
/* clang-format off */
#define DISTILE_OPERATOR_KINDS(ROW) \
    ROW(1, CONV2D, conv2d, distile_conv2d) \
    ROW(2, CONV_TRANSPOSE2D, conv_transpose2d, distile_conv2d) \
    ROW(3, UPSAMPLE_CONV2D, upsample_conv2d, distile_conv2d) \
    ROW(4, LINEAR, linear, distile_linear) \
    ROW(5, ATTENTION, attention, distile_attention) \
    ROW(6, MATMUL, matmul, distile_matmul)
/* clang-format on */

#endif
