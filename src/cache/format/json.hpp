// A strict JSON reader and writer (RFC 8259) with limits, for untrusted files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace robocache::cache_detail {

struct Member;

/// A number without point and exponent that does not fit int64, as it was written: a double would not give it back.
struct LargeInteger {
    std::string digits;
};

/// One JSON value. Numbers without point and exponent are integers, all others double.
struct Json {
    using Array = std::vector<Json>;
    using Object = std::vector<Member>;  // in the order of the file; no key twice

    // null unless given
    std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object, LargeInteger> value;

    template <class T>
    [[nodiscard]] const T* get_if() const {
        return std::get_if<T>(&value);
    }
    /// The member of an object; nullptr where this is no object or has no such key.
    [[nodiscard]] const Json* find(std::string_view key) const;
};

struct Member {
    std::string key;
    Json value;
};

struct JsonLimits {
    std::size_t depth = 64;
    std::size_t values = std::size_t{1} << 20;
};

/// Throws FormatError "<what>: <problem> at byte <n>". Refuses what RFC 8259 leaves open: keys given twice, text that
/// is not UTF-8, halves of surrogate pairs, numbers outside double.
[[nodiscard]] Json parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});

/// Without spaces; parse_json gives the same value back. Throws InvalidArgument for numbers that are not finite.
[[nodiscard]] std::string write_json(const Json& json);
/// A JSON string with its quotes.
[[nodiscard]] std::string json_text(std::string_view text);

}  // namespace robocache::cache_detail
