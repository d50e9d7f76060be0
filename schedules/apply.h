/** \file
 * How schedules are applied: with the source beside it.
 */
#ifndef DISTILE_SCHEDULES_APPLY_H
#define DISTILE_SCHEDULES_APPLY_H

/** Applies a statement, and appends it to the stream `source`: the source is the very statements that are applied. */
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

#endif
