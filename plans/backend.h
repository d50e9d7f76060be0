/** \file
 * What plans know of each kind of device. A further one is one file in backends/ that defines its Backend, and one row
 * in backend.cpp; what ranks schedules and what measures have tables of their own (bound_backend.h, measure_backend.h).
 */
#ifndef DISTILE_PLANS_BACKEND_H
#define DISTILE_PLANS_BACKEND_H

#include "plans/data_type.h"
#include "plans/platform.h"
#include "runtime/kinds/group_blocks.h"
#include <string>
#include <vector>

namespace distile {

/** Where the code of a variant comes from. */
enum class Language {
    Halide,     /**< A generator with the plugin. */
    DotProduct, /**< The code in kernels/cpu, and for GPUs in kernels/dp4a. */
    Nonzeros,  /**< The code in kernels/cpu and kernels/cuda_nonzeros that multiplies with the nonzero weights alone. */
    Bitmap,    /**< The code in kernels/cuda_bitmap, for all weights from a bitmap of those that are not 0. */
    TwoFour,   /**< The code in kernels/cuda_two_four, for two of four weights. */
    TensorCore /**< The templates in kernels/tensor_core. */
};

/** What plans know of a layout of the weights. */
struct BackendLayout {
    const char *name;
    int channel_block; /**< Output channels in a block. */
    Language language; /**< The language of the code that reads it. */
    int bytes_of_type; /**< The size of the operator's type that it is for; 0: any. */
};

struct Backend {
    const char *name;                   /**< In plans and device profiles. */
    const char *device;                 /**< In C, a distile_device. */
    const char *display_name;           /**< In messages, for instance "NVIDIA GPUs". */
    std::vector<BackendLayout> layouts; /**< The first is what plans have unless they name another. */
    const char *target_word; /**< Marks the Halide targets of this backend; null: it has those that no word marks. */
    /** The features that code for a Halide target needs, as descriptors name them. Throws FileError for a feature that
     * the runtime cannot check. */
    std::string (*features_of)(const std::string &target);
    /** The Halide target of code for a device with such features on a platform. */
    std::string (*target_of)(const std::string &features, const Platform &platform);
    /** Features in words, for instance "an NVIDIA GPU of compute capability 7.5 or later". */
    std::string (*needs)(const std::string &features);
    /** The name of the built-in device profile for a Halide target. */
    const char *(*generic_profile)(const std::string &target);
    const char *usual_profile; /**< The built-in device profile for schedules without a target. */
    /** Whether every device with the features `has` has the features `needed`. */
    bool (*includes)(const std::string &has, const std::string &needed);
    /** "", or why there is no code in a language for operators of a type on devices with such features. */
    std::string (*why_no_code)(Language language, const DataType &type, const std::string &features);
    std::vector<const char *> objects; /**< Files beside the command that code from Halide links. */
    /** What users call a "thread" of a time table, and a core of the device. */
    const char *worker, *core;
    /** A vector operation of a core, and its multiply-adds. */
    const char *operation, *multiply_adds;
    /** Generated code reads its input as float32, except in depthwise operators; the runtime converts other types. */
    bool reads_float32;
    GroupReaders group_readers; /**< How generated code reads groups. */
    bool blocks_rows; /**< Code of operators with keys is for one head and block of rows (distile_call_row_blocks). */
    int tile_counts;  /**< Numbers of tiles at which a search measures a schedule unless told otherwise. */
};

const Backend &cpu_backend();
const Backend &cuda_backend();
const Backend &opencl_backend();

const std::vector<const Backend *> &backends();
/** Null if there is none of this name. */
const Backend *find_backend(const std::string &name);
/** Throws FileError if there is none. */
const Backend &get_backend(const std::string &name);
/** The backend of a Halide target. */
const Backend &backend_of_target(const std::string &target);
/** The backend of a Halide target with these words: the backend with one of them, else the one that has no word. */
const Backend &backend_of_words(const std::vector<std::string> &words);
/** The names of all, for messages and options. */
std::vector<std::string> backend_names();
/** A backend's layout; null if there is none of this name. */
const BackendLayout *find_layout(const Backend &backend, const std::string &name);

/** The layout that code in a language reads for operators of a type; null if the backend has no such code. */
const BackendLayout *layout_for(const Backend &backend, Language language, const DataType &type);

/** The parts of a Halide target behind the platform. Throws FileError for a target that does not begin with one, or
 * that ends with '-'. */
std::vector<std::string> target_words(const std::string &target);
/** The words of a text between '-'; empty words are left out. */
std::vector<std::string> split_words(const std::string &text);

}  // namespace distile

#endif
