// From `&kernel` alone: how each parameter is passed, and a caller that unpacks an array of
// pointers to the arguments, as cuLaunchKernel does.
#pragma once

namespace cuda_on_cpu {

template <class T>
constexpr ParameterKind kind_of() {
  if constexpr (std::is_same<T, bool>::value) return ParameterKind::boolean;
  else if constexpr (std::is_pointer<T>::value) return ParameterKind::pointer;
  else if constexpr (std::is_floating_point<T>::value) return ParameterKind::real;
  else if constexpr (!std::is_integral<T>::value) return ParameterKind::structure;
  else if constexpr (std::is_signed<T>::value) return ParameterKind::integer;
  else return ParameterKind::natural;
}

template <class T>
constexpr std::uint32_t bytes_of() {
  if constexpr (std::is_void<T>::value) return 0;
  else return sizeof(T);
}

template <class T>
constexpr Parameter describe() {
  static_assert(!std::is_reference<T>::value, "a kernel parameter cannot be a reference");
  static_assert(std::is_trivially_copyable<T>::value, "a kernel parameter is copied bytewise");
  using Pointee = typename std::remove_pointer<T>::type;
  using Plain = typename std::remove_cv<Pointee>::type;
  return {kind_of<T>(), sizeof(T), kind_of<Plain>(), bytes_of<Plain>(),
          std::is_const<Pointee>::value};
}

template <auto kernel>
struct Entry;

template <class... Parameters, void (*kernel)(Parameters...)>
struct Entry<kernel> {
  // One more than needed, for kernels without parameters.
  static constexpr Parameter parameters[sizeof...(Parameters) + 1] = {describe<Parameters>()...,
                                                                     Parameter{}};

  template <std::size_t... Positions>
  __attribute__((no_sanitize_thread)) static void unpack(void** arguments,
                                                         std::index_sequence<Positions...>) {
    (void)arguments;
    kernel(*static_cast<typename std::remove_cv<Parameters>::type*>(arguments[Positions])...);
  }

  __attribute__((no_sanitize_thread)) static void call(void** arguments) {
    unpack(arguments, std::index_sequence_for<Parameters...>{});
  }

  static constexpr Kernel named(const char* name) {
    return {name, &call, sizeof...(Parameters), parameters};
  }
};

}  // namespace cuda_on_cpu
