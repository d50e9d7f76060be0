"""The C API, as far as programs need it that measure it beside PyTorch and ONNX Runtime."""
import ctypes

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "uint8": 4, "int8": 5}
OUTPUT_BY_INPUT = 1  # distile_weights_order


class Tensor(ctypes.Structure):
    _fields_ = ([("data", ctypes.c_void_p), ("dtype", ctypes.c_int32)]
                + [(name, ctypes.c_int32) for name in ("batch", "height", "width", "channels")]
                + [(name, ctypes.c_int64) for name in ("stride_n", "stride_h", "stride_w")]
                + [(f"border_{side}", ctypes.c_int32) for side in ("top", "bottom", "left", "right")])


class RunArgs(ctypes.Structure):
    _fields_ = [("input", ctypes.POINTER(Tensor)), ("residual", ctypes.POINTER(Tensor)),
                ("output", ctypes.POINTER(Tensor)), ("weights", ctypes.c_void_p), ("mask", ctypes.c_void_p),
                ("inactive", ctypes.c_int32), ("store", ctypes.c_int32), ("variant", ctypes.c_char_p),
                ("key", ctypes.POINTER(Tensor)), ("value", ctypes.POINTER(Tensor)), ("key_mask", ctypes.c_void_p),
                ("scale", ctypes.c_float), ("reserved", ctypes.c_int64 * 4)]


class NormalizeArgs(ctypes.Structure):
    _fields_ = [("input", ctypes.POINTER(Tensor)), ("output", ctypes.POINTER(Tensor)), ("mask", ctypes.c_void_p),
                ("gamma", ctypes.c_void_p), ("beta", ctypes.c_void_p), ("norm", ctypes.c_int32),
                ("epsilon", ctypes.c_float), ("inactive", ctypes.c_int32), ("reserved", ctypes.c_int64 * 4)]


class Scale(ctypes.Structure):
    _fields_ = [("scale", ctypes.c_float), ("zero_point", ctypes.c_int32)]


class Quantization(ctypes.Structure):
    _fields_ = [("input", Scale), ("filter_scales", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("output", Scale),
                ("residual", Scale), ("reserved", ctypes.c_int64 * 4)]


class WeightsSource(ctypes.Structure):
    _fields_ = ([("filter", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("order", ctypes.c_int32)]
                + [(name, ctypes.c_void_p) for name in ("bias", "bn_gamma", "bn_beta", "bn_mean", "bn_variance")]
                + [("bn_epsilon", ctypes.c_float), ("quantization", ctypes.POINTER(Quantization)),
                   ("reserved", ctypes.c_int64 * 3)])


class Choice(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_char_p), ("variant", ctypes.c_char_p), ("variant_index", ctypes.c_int32),
                ("dense", ctypes.c_int32), ("tile_h", ctypes.c_int32), ("tile_w", ctypes.c_int32),
                ("tiles", ctypes.c_int64), ("active_pixels", ctypes.c_int64), ("predicted_us", ctypes.c_double),
                ("elapsed_us", ctypes.c_double)]


class VariantInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tile_h", ctypes.c_int32), ("tile_w", ctypes.c_int32),
                ("dense", ctypes.c_int32)]


class ContextOptions(ctypes.Structure):
    _fields_ = [("threads", ctypes.c_int32), ("others", ctypes.c_void_p * 8), ("math", ctypes.c_int32),
                ("reserved", ctypes.c_int64 * 4)]


class CudaOptions(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int32), ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p),
                ("cache_folder", ctypes.c_char_p), ("choose_on_device", ctypes.c_int32),
                ("launch_us", ctypes.c_double), ("reserved", ctypes.c_int64 * 3)]


class Tokens:
    """Tokens [batch, count, channels] in memory of the caller's, as a tensor of the C API. `first` is the first of the
    channels, for some of those of a row."""

    def __init__(self, address, dtype, batch, count, channels, row_channels=None, first=0):
        row = row_channels or channels
        address += first * (4 if dtype == "float32" else 2)
        self.tensor = Tensor(address, DTYPES[dtype], batch, 1, count, channels, count * row, count * row, row)

    def pointer(self):
        return ctypes.pointer(self.tensor)


class Distile:
    """A context. Objects of the C API live as long as the process."""

    def __init__(self, library, threads=0, cuda=False):
        self.library = ctypes.CDLL(library)
        self.library.distile_context_message.restype = ctypes.c_char_p
        self.library.distile_context_message.argtypes = [ctypes.c_void_p]
        self.context = ctypes.c_void_p()
        if cuda:
            options = CudaOptions(choose_on_device=1)
            create, arguments = self.library.distile_cuda_context_create, (None, ctypes.byref(options))
        else:
            options = ContextOptions(threads=threads)
            create, arguments = self.library.distile_context_create, (ctypes.byref(options),)
        self.check(create(*arguments, ctypes.byref(self.context)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.library.distile_context_message(self.context).decode())

    def set_stream(self, stream):
        """Enqueues what follows on a stream of PyTorch's."""
        self.check(self.library.distile_cuda_set_stream(self.context, ctypes.c_void_p(stream.cuda_stream)))

    def kernel(self, path, times=None):
        """A kernel from a shared object that `distile compile` made, with times that `distile profile` wrote."""
        polykernel = ctypes.c_char.in_dll(ctypes.CDLL(str(path)), "distile_measured")
        kernel = ctypes.c_void_p()
        self.check(self.library.distile_kernel_create(self.context, ctypes.byref(polykernel), ctypes.byref(kernel)))
        if times is not None and times.exists():
            self.check(self.library.distile_kernel_load_times(kernel, str(times).encode()))
        return kernel

    def weights(self, kernel, filter_, bias, quantization=None):
        """Packs NumPy arrays: [outputs, inputs], of a convolution with rows and columns too, and [outputs] of float32,
        or None. With a Quantization the first one is of int8, else of float32."""
        source = WeightsSource(filter=filter_.ctypes.data, order=OUTPUT_BY_INPUT,
                               bias=None if bias is None else bias.ctypes.data)
        if quantization is not None:
            source.dtype, source.quantization = DTYPES["int8"], ctypes.pointer(quantization)
        weights = ctypes.c_void_p()
        self.check(self.library.distile_weights_pack(kernel, ctypes.byref(source), ctypes.byref(weights)))
        return weights

    def mask(self):
        mask = ctypes.c_void_p()
        self.check(self.library.distile_mask_create(self.context, ctypes.byref(mask)))
        return mask

    def prepared(self, function, *arguments):
        """A call whose arguments are converted once, so that Python takes half a microsecond of it."""
        def call():
            status = function(*arguments)
            if status:
                self.check(status)

        return call

    def mask_setter(self, mask, address, batch, width, height=1):
        """A call that sets a mask to bytes [batch, height, width]; those of tokens are one row."""
        numbers = [ctypes.c_int32(number) for number in (batch, height, width)]
        return self.prepared(self.library.distile_mask_set_bytes, mask, ctypes.c_void_p(address), *numbers,
                             ctypes.c_int64(height * width), ctypes.c_int64(width))

    def runner(self, kernel, args):
        """A call of a kernel."""
        return self.prepared(self.library.distile_run, kernel, ctypes.byref(args))

    def run(self, kernel, args):
        self.runner(kernel, args)()

    def sides(self, kernel, args, set_mask):
        """What is timed of a call: from the byte mask, and for a mask that is set."""
        run = self.runner(kernel, args)

        def masked():
            set_mask()
            run()

        return {"masked": masked, "kernels": run}

    def normalize(self, args):
        self.check(self.library.distile_normalize(self.context, ctypes.byref(args)))

    def variants(self, kernel):
        """The names of a kernel's variants."""
        name = self.library.distile_kernel_variant_name
        name.restype = ctypes.c_char_p
        return [name(kernel, index) for index in range(self.library.distile_kernel_num_variants(kernel))]

    def variant(self, kernel, index):
        info = VariantInfo()
        self.check(self.library.distile_kernel_get_variant(kernel, index, ctypes.byref(info)))
        return info

    def add_time(self, kernel, variant, tiles, microseconds):
        """Adds a point to a kernel's time table."""
        self.check(self.library.distile_kernel_add_time(kernel, variant, ctypes.c_int64(tiles),
                                                        ctypes.c_double(microseconds)))

    def chosen(self, kernel, mask):
        """The variant that the host chooses for a mask."""
        choice = Choice()
        self.check(self.library.distile_kernel_choose(kernel, mask, ctypes.byref(choice)))
        return choice.variant
