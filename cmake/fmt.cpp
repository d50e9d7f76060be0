// The library fmt, of version 9: what its headers declare and leave to one file. Distributions have it as a shared
// library only, and programs that are carried to another machine contain it.
#include <fmt/format-inl.h>

namespace fmt::detail {

template class buffer<char>;
template void vformat_to(buffer<char> &, string_view, format_args, locale_ref);
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;

}  // namespace fmt::detail
