/** \file
 * Several devices that share images: a chain of masked layers, of which each device computes a part of the active
 * pixels and fetches from the others what its windows read beyond it.
 *
 * A group has contexts, each with a device of its own, equal or not. A chain has the layers, with a kernel for each
 * context. A run cuts the images so that all devices end at once, copies the input to them, and collects the result:
 *
 *     distile_group_create(contexts, 4, NULL, &group);
 *     distile_chain_create(group, layers, 12, &chain);
 *     distile_chain_run(chain, &(distile_chain_args){.input = &input, .output = &output, .masks = masks});
 *
 * Results are bit for bit those of one device in calls with `fixed_order`: every layer runs the variant that the first
 * context would choose for the whole mask. Devices whose code differs, because they lack features that others have, may
 * round differently; so do groups with `any_order`.
 *
 * The devices may be those of several processes, also on several hosts: each is a rank with the contexts of its own
 * devices, gives `transport` in its options, and makes the same calls in the same order (docs/several_devices.md,
 * Ranks).
 *
 * One thread at a time may use a group and its chains. While a call of theirs runs, they use the contexts, each in a
 * thread of their own, and nobody else may. Destroy chains before their group, and the group before its contexts. A
 * child of fork() can use no group of its parent.
 *
 * A failed call stores a sentence for distile_group_message(). A device that fails ends the call for all; the group may
 * be used again. A device that does not end in time makes the call return DEVICE_LOST, on CPUs too, and the group
 * unusable: what such a device may still use is never freed, not by destroying the group either.
 */
#ifndef DISTILE_GROUP_H
#define DISTILE_GROUP_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Contexts that share work. */
typedef struct distile_group distile_group;

/** What a device takes, in microseconds: a constant in each chain, and the multiply-adds of its active pixels divided
 * by `products_per_us`. */
typedef struct distile_group_speed {
    double fixed_us;        /**< At least 0. */
    double products_per_us; /**< Above 0. */
} distile_group_speed;

/** Whether devices compute the pixels that others fetch first, and the others while these travel. */
typedef enum distile_overlap {
    DISTILE_OVERLAP_WHERE_ASYNCHRONOUS = 0, /**< Where copies between these devices do not keep them busy. */
    DISTILE_OVERLAP_ALWAYS = 1,
    DISTILE_OVERLAP_NEVER = 2
} distile_overlap;

/** Bytes that go to another rank, or come from one. */
typedef struct distile_message {
    int32_t peer;       /**< The other rank. */
    int32_t reserved32; /**< 0 */
    void *data;
    int64_t bytes; /**< At least 1. */
} distile_message;

/** Messages that travel at once: at most one to each other rank, and one from each. */
typedef struct distile_messages {
    const distile_message *sends, *receives;
    int32_t num_sends, num_receives;
    int32_t on_device;  /**< 1: they are in memory of the first context's device; 0: in the host's. */
    int32_t timeout_ms; /**< When to give up, from now on; at least 1. */
    /** With `on_device`, that GPU's stream (CUstream): sends come after what it has been given, and what it is given
     * afterwards comes after the receives. */
    void *stream;
    char *cause;         /**< For a sentence in ASCII about a failure, which ends with a null character; "" before. */
    int32_t cause_bytes; /**< At least 256. */
    int32_t reserved32;  /**< 0 */
    int64_t reserved[4]; /**< 0 */
} distile_messages;

/** What takes messages to the other ranks of a group: for instance MPI, NCCL or torch.distributed. The messages of all
 * devices of a rank are in memory of its first one. Zero-initialise, then set. */
typedef struct distile_transport {
    int32_t rank, ranks; /**< This process's number, and how many there are, at most 1024. */
    /** Exchanges messages. A message meets the receive of as many bytes that its peer asks for: between two ranks, in
     * one direction, messages keep their order, of both kinds of memory apart. Returns once what it was given may be
     * changed: by the host, or with `on_device` by later work of the stream. No exception may leave it; other threads
     * than those of the group's calls may call it, one at a time. After another result than OK the group is lost. */
    distile_status (*exchange)(void *user, const distile_messages *messages);
    void *user;
    /** 1: with `on_device`, messages travel while the streams of the contexts compute; only for GPUs. */
    int32_t asynchronous;
    int32_t reserved32;  /**< 0 */
    int64_t reserved[4]; /**< 0 */
} distile_transport;

/** Zero-initialise, then set only what differs from the default. */
typedef struct distile_group_options {
    /** One for each context; null: all are equally fast. Copied. */
    const distile_group_speed *speeds;
    /** A partition stays for new masks while the slowest device takes at most this part longer than if all ended at
     * once; at least 0. 0: a tenth. */
    double imbalance;
    /** The longest that a run may take before it stops; devices then have as long again to end. 0: a minute. */
    int32_t timeout_ms;
    distile_overlap overlap;
    /** 1: devices run the variant that suits the largest part, and variants for tensor cores that balance their work do
     * so. Faster, most of all for small images, but results round otherwise than those of one device. */
    int32_t any_order;
    int32_t reserved32; /**< 0 */
    /** Null: all devices are of this process. Else each rank gives the contexts of its own devices, one or more, which
     * count on from those of the ranks before; `speeds` are of these, and `imbalance` and `any_order` are equal
     * everywhere. Copied. */
    const distile_transport *transport;
    int64_t reserved[3]; /**< 0 */
} distile_group_options;

/** Makes a group of `count` contexts, 1 to 1024 on all ranks together, each of which is given once. `options` may be
 * null. After an error, distile_group_message(NULL) gives the cause. Errors: NULL_POINTER, BAD_VALUE (also ranks whose
 * options differ), UNSUPPORTED_DEVICE (nothing copies between two of these devices), OUT_OF_MEMORY, VERSION (a rank has
 * another version of this library), DEVICE_LOST (a rank does not answer).
 *
 * With a transport, ranks do this and all that runs, makes or collects chains together: each call compares what they
 * give, so a rank that refuses its arguments, or differs from the first one, makes the call fail with the same status
 * on all. A rank that does not take part makes it return DEVICE_LOST within the time-out, and the group unusable. */
DISTILE_API distile_status distile_group_create(distile_context *const *contexts, int32_t count,
                                                const distile_group_options *options, distile_group **group);
/** Null is allowed. */
DISTILE_API void distile_group_destroy(distile_group *group);
/** The cause of the last failed call on this group or its chains; "" if none failed. With null: what
 * distile_context_message(NULL) gives. Valid until the next call. */
DISTILE_API const char *distile_group_message(const distile_group *group);

/** Layers, each of which reads the output of the one before. */
typedef struct distile_chain distile_chain;

/** A layer. Zero-initialise, then set. */
typedef struct distile_chain_layer {
    /** Its PolyKernel for each context of the group, in their order: a masked_conv2d or masked_linear of a
     * floating-point type, the same operator in each. They must outlive the chain. */
    const distile_polykernel *const *polykernels;
    const distile_weights_source *weights; /**< Packed once for each memory. */
    /** For an operator with a residual, the tensor that it adds, of the output's size: 0 is the chain's input, and i
     * the output of layer i - 1. Else 0. */
    int32_t residual;
    int32_t reserved32; /**< 0 */
    /** The variant that every device runs, as distile_run_args has it; null: the one that the first context chooses for
     * the whole mask, or with `any_order` for the largest part. Copied. */
    const char *variant;
    int64_t reserved[4]; /**< 0 */
} distile_chain_layer;

/** Makes a chain of 1 to 1024 layers, whose strides multiply to at most 256 along each axis. The output of a layer has
 * the type and the channels of the next one's input. Layers without strides may lie between a residual and where it is
 * added, and at most 60 layers. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE (a residual of another size), BAD_TYPE,
 * BAD_CHANNELS, and those of distile_kernel_create and distile_weights_pack; BAD_VALUE and DEVICE_LOST with ranks, also
 * where layers or weights differ. */
DISTILE_API distile_status distile_chain_create(distile_group *group, const distile_chain_layer *layers, int32_t count,
                                                distile_chain **chain);
/** Null is allowed. */
DISTILE_API void distile_chain_destroy(distile_chain *chain);

/** Zero-initialise, then set. */
typedef struct distile_chain_args {
    /** In memory of the first context's device. They may not overlap. They may span up to 2^40 elements, where no
     * device's box spans 2^31 or more; with DISTILE_ZERO, an output fewer than 2^31.
     *
     * With a transport, each rank gives its own, of the same extents: its devices read their parts of the input from
     * there, and it gets the whole output. With null as the `data` of the input, which the first rank may not have,
     * they get their parts from the first rank; with null as that of the output, it gets none.
     *
     * Without an output, the devices keep the result: images of the input's size and channels, which are the input with
     * the active pixels of the last output. Without an input, a run takes the images that the devices keep; they change
     * only if there is no output either. So data stays where it is from run to run, as in steps of diffusion or frames
     * of video, except where devices share pixels and where images are cut anew. A run that fails may leave no images.
     */
    const distile_tensor *input, *output;
    /** A mask of the first context for each layer, over its output; a mask may be there several times. Outside its
     * mask, the output of a layer is 0 for the layers that read it. With a transport, each rank gives the whole masks,
     * or null: then it gets those of the first rank, as bits, where they are not those of its last run. */
    distile_mask *const *masks;
    distile_inactive inactive; /**< What becomes of the inactive pixels of the last output. */
    int32_t reserved32;        /**< 0 */
    int64_t reserved[4];       /**< 0 */
} distile_chain_args;

/** Runs the chain, and returns when the output is there. Images of a batch may have unequal masks. Plans anew if a mask
 * differs from that of the last run, and cuts images anew if parts no longer balance. All arguments are checked before
 * anything is written; if a device fails, the output may be partly written. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE,
 * BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK, ALIASING, OUT_OF_MEMORY, DEVICE_LOST, INTERNAL (the
 * group is a parent process's), and those of distile_run. */
DISTILE_API distile_status distile_chain_run(distile_chain *chain, const distile_chain_args *args);

/** Copies the images that the devices keep to a tensor in memory of the first context's device. With a transport, ranks
 * whose tensor is null get none. Errors: NULL_POINTER, BAD_VALUE (they keep none; no rank wants them), BAD_SHAPE,
 * BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, OUT_OF_MEMORY, DEVICE_LOST, INTERNAL (the group is a parent
 * process's). */
DISTILE_API distile_status distile_chain_collect(distile_chain *chain, const distile_tensor *output);

/** What the plan of the last run is. */
typedef struct distile_chain_info {
    int32_t devices;      /**< The contexts of the group. */
    int32_t busy_devices; /**< Contexts with pixels. */
    int64_t pixels;       /**< The active pixels of all layers' outputs, of all devices. */
    double imbalance;     /**< What the slowest device takes above the time if all ended at once, as a part of it. */
    int64_t halo_bytes;   /**< What devices fetch from each other in a run, beside the input. */
    int64_t row_bytes;    /**< What they would fetch if the images were cut into bands of rows. */
    int64_t input_bytes;  /**< What devices copy of the input. */
    int64_t plans;        /**< How often masks differed from those before. */
    int64_t partitions;   /**< How often the images were cut. */
    int64_t moved_pixels; /**< Pixels of the input that the last cut gave to another device; 0 for the first cut of a
                             size. */
} distile_chain_info;

/** All 0 before the first run. Errors: NULL_POINTER, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_chain_get_info(const distile_chain *chain, distile_chain_info *info);

/** The variant that a layer of the plan of the last run has; null before the first run, and if there is no such layer.
 * Valid until the next run. */
DISTILE_API const char *distile_chain_variant(const distile_chain *chain, int32_t layer);

#ifdef __cplusplus
}
#endif

#endif
