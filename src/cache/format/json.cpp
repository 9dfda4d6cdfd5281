// Recursive descent, bounded by JsonLimits.
#include "cache/format/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "robocache/errors.hpp"

namespace robocache::cache_detail {
namespace {

/// Bytes of the well-formed UTF-8 sequence that `text` begins with; 0 if there is none (RFC 3629: nothing longer than
/// needed, no surrogates, nothing above U+10FFFF).
std::size_t utf8_length(std::string_view text) {
    const auto at = [&](std::size_t i) -> unsigned {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
    };
    const auto tail = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
        return at(i) >= low && at(i) <= high;
    };
    const unsigned first = at(0);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
        return tail(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && tail(2) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        return tail(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && tail(2) && tail(3) ? 4 : 0;
    }
    return 0;
}

void append_utf8(std::string& text, std::uint32_t code) {
    const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
        put(0xc0 | code >> 6);
    } else {
        if (code < 0x10000) {
            put(0xe0 | code >> 12);
        } else {
            put(0xf0 | code >> 18);
            put(0x80 | (code >> 12 & 0x3f));
        }
        put(0x80 | (code >> 6 & 0x3f));
    }
    put(0x80 | (code & 0x3f));
}

class Parser {
public:
    Parser(std::string_view text, std::string_view what, JsonLimits limits)
        : text_(text), what_(what), limits_(limits) {}

    Json parse() {
        Json json = value(0);
        skip_space();
        if (at_ != text_.size()) fail("text after the value");
        return json;
    }

private:
    [[noreturn]] void fail(std::string_view problem) const {
        throw FormatError(std::string(what_) + ": " + std::string(problem) + " at byte " + std::to_string(at_));
    }

    [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
    }

    bool accept(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) return false;
        at_ += word.size();
        return true;
    }

    Json value(std::size_t depth) {
        if (++num_values_ > limits_.values) fail("more than " + std::to_string(limits_.values) + " values");
        skip_space();
        if (accept("null")) return {};
        if (accept("true")) return {true};
        if (accept("false")) return {false};
        const bool nested = peek() == '[' || peek() == '{';
        if (nested && depth >= limits_.depth) fail("deeper than " + std::to_string(limits_.depth) + " levels");
        switch (peek()) {
            case '"': return {string()};
            case '[': return {array(depth)};
            case '{': return {object(depth)};
            default: return number();
        }
    }

    Json::Array array(std::size_t depth) {
        Json::Array items;
        ++at_;
        skip_space();
        if (accept("]")) return items;
        do {
            items.push_back(value(depth + 1));
            skip_space();
        } while (accept(","));
        if (!accept("]")) fail("no ',' or ']'");
        return items;
    }

    Json::Object object(std::size_t depth) {
        Json::Object members;
        ++at_;
        skip_space();
        if (accept("}")) return members;
        do {
            skip_space();
            if (peek() != '"') fail("no key");
            std::string key = string();
            skip_space();
            if (!accept(":")) fail("no ':'");
            Json item = value(depth + 1);
            members.push_back({std::move(key), std::move(item)});
            skip_space();
        } while (accept(","));
        if (!accept("}")) fail("no ',' or '}'");
        refuse_same_keys(members);
        return members;
    }

    void refuse_same_keys(const Json::Object& members) const {
        std::vector<std::string_view> keys;
        keys.reserve(members.size());
        for (const Member& member : members) keys.push_back(member.key);
        std::sort(keys.begin(), keys.end());
        if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) fail("a key twice in the object that ends");
    }

    std::string string() {
        std::string result;
        ++at_;
        while (true) {
            if (at_ >= text_.size()) fail("a string without end");
            const auto byte = static_cast<unsigned char>(text_[at_]);
            if (byte == '"') break;
            if (byte < 0x20) fail("a control character in a string");
            if (byte == '\\') {
                ++at_;
                escape(result);
                continue;
            }
            const std::size_t length = utf8_length(text_.substr(at_));
            if (length == 0) fail("text that is not UTF-8");
            result.append(text_.substr(at_, length));
            at_ += length;
        }
        ++at_;
        return result;
    }

    void escape(std::string& result) {
        constexpr std::string_view letters = "\"\\/bfnrt";
        constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
        const char letter = peek();
        if (letter == 'u') return append_utf8(result, code_point());
        const std::size_t i = letters.find(letter);
        if (letter == '\0' || i == std::string_view::npos) fail("an unknown escape");
        result += meanings[i];
        ++at_;
    }

    std::uint32_t code_point() {
        const std::uint32_t first = code_unit();
        if (first < 0xd800 || first > 0xdfff) return first;
        if (first > 0xdbff || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
        ++at_;
        const std::uint32_t second = code_unit();
        if (second < 0xdc00 || second > 0xdfff) fail("half of a surrogate pair");
        return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    }

    /// `uXXXX`.
    std::uint32_t code_unit() {
        const std::string_view digits = text_.substr(std::min(at_ + 1, text_.size()), 4);
        std::uint32_t unit = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
        if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) fail("\\u without four digits");
        at_ += 5;
        return unit;
    }

    std::size_t digits() {
        const std::size_t begin = at_;
        while (peek() >= '0' && peek() <= '9') ++at_;
        return at_ - begin;
    }

    Json number() {
        const std::size_t begin = at_;
        accept("-");
        const bool zero = peek() == '0';
        const std::size_t whole = digits();
        if (whole == 0) fail("no value");
        if (zero && whole > 1) fail("a number that begins with 0");
        bool integer = true;
        if (accept(".")) {
            integer = false;
            if (digits() == 0) fail("no digit after '.'");
        }
        if (peek() == 'e' || peek() == 'E') {
            integer = false;
            ++at_;
            if (peek() == '+' || peek() == '-') ++at_;
            if (digits() == 0) fail("no digit in an exponent");
        }
        const char* first = text_.data() + begin;
        const char* last = text_.data() + at_;
        std::int64_t small = 0;
        if (integer && std::from_chars(first, last, small).ec == std::errc()) return {small};
        double real = 0;
        if (std::from_chars(first, last, real).ec != std::errc() || !std::isfinite(real)) fail("a number too large");
        if (integer) return {LargeInteger{std::string(first, last)}};
        return {real};
    }

    std::string_view text_;
    std::string_view what_;
    JsonLimits limits_;
    std::size_t at_ = 0;
    std::size_t num_values_ = 0;
};

void write(const Json& json, std::string& text);

struct Writer {
    std::string& text;

    void operator()(std::nullptr_t) const { text += "null"; }
    void operator()(bool value) const { text += value ? "true" : "false"; }
    void operator()(std::int64_t value) const { text += std::to_string(value); }
    void operator()(const LargeInteger& value) const { text += value.digits; }
    void operator()(double value) const {
        if (!std::isfinite(value)) throw InvalidArgument("write_json: numbers must be finite");
        char digits[40];
        const std::string_view shortest(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
        text += shortest;
        if (shortest.find_first_of(".e") == std::string_view::npos) text += ".0";  // stays a double
    }
    void operator()(const std::string& value) const { text += json_text(value); }
    void operator()(const Json::Array& items) const {
        text += '[';
        for (std::size_t i = 0; i < items.size(); ++i) {
            if (i > 0) text += ',';
            write(items[i], text);
        }
        text += ']';
    }
    void operator()(const Json::Object& members) const {
        text += '{';
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (i > 0) text += ',';
            text += json_text(members[i].key) + ":";
            write(members[i].value, text);
        }
        text += '}';
    }
};

void write(const Json& json, std::string& text) {
    std::visit(Writer{text}, json.value);
}

}  // namespace

const Json* Json::find(std::string_view key) const {
    const auto* members = get_if<Object>();
    if (members == nullptr) return nullptr;
    for (const Member& member : *members) {
        if (member.key == key) return &member.value;
    }
    return nullptr;
}

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
    return Parser(text, what, limits).parse();
}

std::string write_json(const Json& json) {
    std::string text;
    write(json, text);
    return text;
}

std::string json_text(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') result += '\\';
        if (byte >= 0x20) {
            result += c;
        } else {
            result += "\\u00";
            result += "0123456789abcdef"[byte >> 4];
            result += "0123456789abcdef"[byte & 0xf];
        }
    }
    return result + "\"";
}

}  // namespace robocache::cache_detail
