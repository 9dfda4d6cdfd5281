// align: sample streams at query times. The contract, case by case, is docs/align.md.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "robocache/errors.hpp"
#include "robocache/tensor.hpp"

namespace robocache {

/// How a stream is read between its rows.
enum class Method : std::uint8_t {
    automatic,  ///< linear for floating values, previous for integers and bool
    linear,
    previous,
    next,
    nearest,     ///< the earlier row at a tie
    cubic,       ///< non-uniform Catmull-Rom
    slerp_xyzw,  ///< channels in groups of four
    slerp_wxyz,
    angle,  ///< the short way round StreamView::period
    mean,   ///< mean, min, max, rms: over the half-open window between the midpoints of targets
    min,
    max,
    rms,  ///< the root of the mean of the squares
};

/// What a method makes of the rows around a target.
enum class MethodFamily : std::uint8_t {
    row,         ///< one row as it is
    blend,       ///< rows blended channel by channel
    quaternion,  ///< rows blended in groups of four channels
    window,      ///< all rows between the midpoints of targets
};

/// What the native gradient of a method depends on.
enum class MethodGradient : std::uint8_t {
    none,    ///< there is none
    times,   ///< the times alone: the values are not read
    values,  ///< also the values of the rows
};

/// What one method is and can do; method_traits() lists them.
struct MethodTraits {
    Method method;
    std::string_view name;
    MethodFamily family;
    bool takes_integers;  ///< and bool
    MethodGradient gradient;
};

/// The methods that have a name, in the order of Method: all but Method::automatic.
[[nodiscard]] std::span<const MethodTraits> method_traits() noexcept;

/// What a target before the first or after the last row gets.
enum class Outside : std::uint8_t { hold, nan, linear, error };

/// Throw InvalidArgument, listing the choices, for an unknown name. `op` and `argument` are for that message.
[[nodiscard]] Method method_from_name(std::string_view name, std::string_view op = "align",
                                      const ArgumentName& argument = "method");
[[nodiscard]] Outside outside_from_name(std::string_view name, std::string_view op = "align",
                                        const ArgumentName& argument = "outside");
/// "linear", "slerp_xyzw"; "automatic" for Method::automatic.
[[nodiscard]] std::string_view method_name(Method method) noexcept;

/// A length of time, kept in both units so that streams with int64 and with floating times read it exactly.
struct Duration {
    std::int64_t ns = 0;
    double seconds = 0;

    constexpr Duration() = default;
    /// From std::chrono: 10ms, std::chrono::microseconds(5), …
    template <class Rep, class Period>
        requires std::convertible_to<std::chrono::duration<Rep, Period>, std::chrono::nanoseconds>
    constexpr Duration(std::chrono::duration<Rep, Period> duration)
        : ns(std::chrono::nanoseconds(duration).count()), seconds(static_cast<double>(ns) / 1e9) {}
    constexpr Duration(std::int64_t nanoseconds, double as_seconds) : ns(nanoseconds), seconds(as_seconds) {}
};

/// `method` for channels [begin, end) of the only channel dimension.
struct ChannelRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    Method method = Method::automatic;
};

/// Rows of values and a time for each row, cut into episodes; owned by the caller.
///   dense        values (E, S, ...)   times (E, S)
///   ragged       values (rows, ...)   times (rows,)   offsets (E + 1,) i64
///   one episode  values (rows, ...)   times (rows,)
/// times: i64 nanoseconds, f64 seconds or f32 seconds, not decreasing inside an episode.
struct StreamView {
    TensorView values;
    TensorView times;
    std::optional<TensorView> offsets{};
    Method method = Method::automatic;
    std::span<const ChannelRange> ranges{};  ///< channels in no range use `method`
    Duration latency{};                      ///< the stream is read at target + latency
    std::optional<Duration> max_gap{};       ///< no valid result across a longer gap
    Outside before = Outside::hold;
    Outside after = Outside::hold;
    bool outside_valid = false;  ///< held and extrapolated results count as valid
    double period = 6.283185307179586476925286766559;
    Duration tolerance{};          ///< a target at most so far from the time of a row is at that row; 0 or more
    std::optional<DType> dtype{};  ///< of the output: that of the values, or a floating one; absent: the output decides
};

/// Row b reads episode[b] at T target times: times (B, T), or times (T,), or anchor (B,) + deltas (T,).
struct Query {
    std::optional<TensorView> times{};
    std::optional<TensorView> anchor{};
    std::optional<TensorView> deltas{};
    std::optional<TensorView> episode{};  ///< (B,) i64; absent: episode b, or the only one
};

/// Where the results of one stream go: memory of the caller, on the device of the stream.
struct AlignOutput {
    TensorView values;                  ///< (B, T, ...): the stream's dtype, or any floating one; any strides
    std::optional<TensorView> valid{};  ///< (B, T) bool
    std::optional<TensorView> index{};  ///< (B, T) i64: the left neighbor's row, -1 where there is none
};

/// What error messages call the arguments of one stream. Empty: "streams[i].values", "streams[i].times".
struct StreamNames {
    std::string_view values;
    std::string_view times;
    bool bare_fields = false;  ///< "max_gap" instead of "streams[i].max_gap"
};

/// What error messages call a function that wraps align, and its arguments. The characters must outlive the plan.
struct AlignNames {
    std::string_view op = "align";
    std::string_view query_times = "times";
    bool has_anchor = true;  ///< the query may be anchor and deltas
    std::span<const StreamNames> streams{};

    [[nodiscard]] ArgumentName values(std::size_t i) const;
    [[nodiscard]] ArgumentName times(std::size_t i) const;
    [[nodiscard]] ArgumentName field(std::size_t i, std::string_view name) const;
};

/// How a call of align checks its input and names it in messages.
struct AlignOptions {
    bool check = true;  ///< verify order and finiteness of times, offsets and episodes before writing
    AlignNames names{};
};

/// A validated call of align. It refers to the data of its streams and query, which must outlive it, and may be run any
/// number of times, by several threads at once.
class AlignPlan {
public:
    struct State;
    explicit AlignPlan(std::unique_ptr<const State> state) noexcept;
    ~AlignPlan();
    AlignPlan(AlignPlan&&) noexcept;
    AlignPlan& operator=(AlignPlan&&) noexcept;

    [[nodiscard]] std::size_t num_streams() const noexcept;
    [[nodiscard]] Device device() const noexcept;
    /// Shapes, dtypes and device of the three outputs of one stream, C-contiguous, without data.
    [[nodiscard]] AlignOutput output(std::size_t stream) const;
    /// The bytes of workspace that run needs.
    [[nodiscard]] std::int64_t workspace_bytes() const noexcept;

    [[nodiscard]] const State& state() const noexcept { return *state_; }  ///< for the implementation

private:
    std::unique_ptr<const State> state_;
};

/// Validates a call and sizes its outputs and workspace. Reads no data.
[[nodiscard]] AlignPlan plan_align(std::span<const StreamView> streams, const Query& query,
                                   const AlignOptions& options = {});

/// Samples every stream at every query time and writes outputs[i] for streams[i]. Throws before writing anything.
/// Queue-ordered on a device; allocates no tensor memory there and waits for nothing, except to check data
/// (options.check, Outside::error).
void run(const AlignPlan& plan, std::span<const AlignOutput> outputs, Workspace workspace = {}, CudaQueue queue = {});

/// What run checks before it writes: the outputs, and the data where options.check is set.
void check(const AlignPlan& plan, std::span<const AlignOutput> outputs, CudaQueue queue = {});

/// For one stream: the gradient that comes back for its output, and where that of its values is summed up.
struct AlignGradient {
    TensorView output;  ///< (B, T, ...) like AlignOutput::values: any floating dtype, any strides, 0 included
    TensorView values;  ///< the shape of StreamView::values; f64 for f64 values, else f32; added to, never cleared
};

/// The gradient of align: adds to gradients[i].values what gradients[i].output brings back, by the weights of the rows
/// each target read. nullopt: none for this stream. The data of StreamView::values is read only for methods with
/// MethodGradient::values; nothing is checked again. Throws Unsupported for methods without a gradient.
/// Queue-ordered on a device, where sums of several targets are not bitwise repeatable; on the CPU they are.
void run_backward(const AlignPlan& plan, std::span<const std::optional<AlignGradient>> gradients,
                  Workspace workspace = {}, CudaQueue queue = {});

/// Throws Unsupported if a method of the stream has no gradient.
void require_gradient(const AlignPlan& plan, std::size_t stream);

}  // namespace robocache
