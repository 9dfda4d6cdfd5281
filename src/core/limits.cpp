// Reading limits from /proc and cgroups.
//
//   /proc/self/cgroup     4:memory:/job/step      v1: the path of this process in the hierarchy of a controller
//                         0::/job/step            v2: in the only one
//   /proc/self/mountinfo  ... /job /sys/fs/cgroup/memory ... - cgroup cgroup rw,memory
//                         (root of the mount) (where it is mounted) (file system) (controllers)
// So the files of this process are in /sys/fs/cgroup/memory/step. A limit of any folder above counts too.
#include "core/limits.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace robocache {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

std::vector<std::string> lines_of(const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

std::vector<std::string> words_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

std::optional<std::int64_t> number_of(std::string_view text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

/// The words of the first line of a file; none where it is missing.
std::vector<std::string> first_words(const std::string& path) {
    const std::vector<std::string> lines = lines_of(path);
    return lines.empty() ? std::vector<std::string>{} : words_of(lines[0]);
}

/// The only number in a file. "max", a missing file and anything else: none.
std::optional<std::int64_t> number_in(const std::string& path) {
    const std::vector<std::string> words = first_words(path);
    return words.size() == 1 ? number_of(words[0]) : std::nullopt;
}

/// The value of a line "name value".
std::int64_t field_in(const std::vector<std::string>& lines, std::string_view name) {
    for (const std::string& line : lines) {
        const std::vector<std::string> words = words_of(line);
        if (words.size() >= 2 && words[0] == name) return number_of(words[1]).value_or(0);
    }
    return 0;
}

bool lists(const std::string& comma_separated, std::string_view name) {
    std::istringstream stream(comma_separated);
    for (std::string item; std::getline(stream, item, ',');) {
        if (item == name) return true;
    }
    return false;
}

/// "\040" is a space in mountinfo.
std::string unescaped(const std::string& text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool escaped = text[i] == '\\' && i + 3 < text.size() &&
                             std::all_of(&text[i + 1], &text[i + 4], [](char c) { return c >= '0' && c <= '7'; });
        if (!escaped) {
            result += text[i];
            continue;
        }
        result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
        i += 3;
    }
    return result;
}

/// The path of this process in the hierarchy of a controller; "" is that of v2.
std::optional<std::string> cgroup_path(const std::string& root, std::string_view controller) {
    for (const std::string& line : lines_of(root + "/proc/self/cgroup")) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controller.empty() ? controllers.empty() : lists(controllers, controller)) return line.substr(second + 1);
    }
    return std::nullopt;
}

/// The folders whose limits hold for this process, its own first.
std::vector<std::string> cgroup_folders(const std::string& root, std::string_view controller) {
    const std::optional<std::string> path = cgroup_path(root, controller);
    if (!path) return {};
    for (const std::string& line : lines_of(root + "/proc/self/mountinfo")) {
        const std::vector<std::string> words = words_of(line);
        const auto dash = std::find(words.begin(), words.end(), "-");
        if (dash - words.begin() < 6 || words.end() - dash < 4) continue;
        const bool wanted =
            controller.empty() ? dash[1] == "cgroup2" : dash[1] == "cgroup" && lists(dash[3], controller);
        if (!wanted) continue;
        const std::string mounted = unescaped(words[3]) == "/" ? "" : unescaped(words[3]);
        const std::string top = root + unescaped(words[4]);
        std::string below;  // a process outside of what is mounted has the limits of the mount
        if (path->starts_with(mounted + "/")) below = path->substr(mounted.size());
        while (!below.empty() && below.back() == '/') below.pop_back();
        std::vector<std::string> folders;
        for (;; below.resize(below.rfind('/'))) {
            folders.push_back(top + below);
            if (below.find('/') == std::string::npos) break;
        }
        return folders;
    }
    return {};
}

/// What a limit leaves; page cache of files is given back when memory is short.
std::int64_t left_of(std::int64_t limit, std::int64_t used, std::int64_t of_files) {
    const std::int64_t held = std::max<std::int64_t>(used - std::max<std::int64_t>(of_files, 0), 0);
    return std::max<std::int64_t>(limit - held, 0);
}

void limit_memory(const std::string& root, Limits& limits) {
    std::int64_t left = unlimited;
    const std::int64_t machine = field_in(lines_of(root + "/proc/meminfo"), "MemAvailable:");
    if (machine > 0) left = machine * 1024;
    const auto limit = [&](std::optional<std::int64_t> most, std::optional<std::int64_t> used, std::int64_t of_files) {
        if (!most || *most < 0) return;
        left = std::min(left, left_of(*most, used.value_or(0), of_files));
        limits.most_memory_bytes = std::min(limits.most_memory_bytes, *most);
    };
    for (const std::string& folder : cgroup_folders(root, "")) {
        const std::vector<std::string> statistics = lines_of(folder + "/memory.stat");
        const std::int64_t of_files = field_in(statistics, "inactive_file") + field_in(statistics, "active_file");
        for (const char* file : {"/memory.max", "/memory.high"}) {
            limit(number_in(folder + file), number_in(folder + "/memory.current"), of_files);
        }
    }
    for (const std::string& folder : cgroup_folders(root, "memory")) {
        const std::vector<std::string> statistics = lines_of(folder + "/memory.stat");
        limit(number_in(folder + "/memory.limit_in_bytes"), number_in(folder + "/memory.usage_in_bytes"),
              field_in(statistics, "total_inactive_file") + field_in(statistics, "total_active_file"));
    }
    limits.free_memory_bytes = left == unlimited ? 0 : left;
}

double quota_cores(const std::string& root) {
    double cores = std::numeric_limits<double>::infinity();
    const auto limit = [&](std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
        if (quota && period && *quota > 0 && *period > 0) {
            cores = std::min(cores, static_cast<double>(*quota) / static_cast<double>(*period));
        }
    };
    for (const std::string& folder : cgroup_folders(root, "")) {
        const std::vector<std::string> words = first_words(folder + "/cpu.max");
        if (words.size() == 2) limit(number_of(words[0]), number_of(words[1]));
    }
    for (const std::string& folder : cgroup_folders(root, "cpu")) {
        limit(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us"));
    }
    return cores;
}

/// How many "0-3,8" are.
std::optional<int> count_of_list(const std::string& text) {
    std::istringstream stream(text);
    std::int64_t count = 0;
    for (std::string item; std::getline(stream, item, ',');) {
        const std::size_t dash = item.find('-');
        const std::optional<std::int64_t> first = number_of(std::string_view(item).substr(0, dash));
        const std::optional<std::int64_t> last =
            dash == std::string::npos ? first : number_of(std::string_view(item).substr(dash + 1));
        if (!first || !last || *last < *first || *last > 1 << 20) return std::nullopt;
        count += *last - *first + 1;
    }
    return count > 0 ? std::optional(static_cast<int>(count)) : std::nullopt;
}

/// Cores of the cgroup of this process: more than it may run on where it is bound to some of them.
int cgroup_cores(const std::string& root) {
    using Where = std::pair<const char*, const char*>;
    for (const auto& [controller, file] :
         {Where{"", "/cpuset.cpus.effective"}, Where{"cpuset", "/cpuset.effective_cpus"},
          Where{"cpuset", "/cpuset.cpus"}}) {
        for (const std::string& folder : cgroup_folders(root, controller)) {
            const std::vector<std::string> words = first_words(folder + file);
            if (words.size() != 1) continue;
            if (const std::optional<int> count = count_of_list(words[0])) return *count;
        }
    }
    return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

int affinity_cores() {
    // More than CPU_SETSIZE (1,024) cores need a larger set.
    for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
        const auto set = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>(CPU_ALLOC(static_cast<std::size_t>(most)),
                                                                          [](cpu_set_t* s) { CPU_FREE(s); });
        const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
        if (set != nullptr && sched_getaffinity(0, bytes, set.get()) == 0) {
            return std::max(1, CPU_COUNT_S(bytes, set.get()));
        }
    }
    return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

std::optional<int> environment_number(const char* name) {
    const char* text = std::getenv(name);
    if (text == nullptr) return std::nullopt;
    const std::optional<std::int64_t> number = number_of(text);
    if (!number || *number < 1 || *number > 1 << 16) return std::nullopt;
    return static_cast<int>(*number);
}

/// The most of "2(x3),1": tasks of each node, and how many nodes have as many.
std::optional<int> most_tasks(const char* text) {
    std::optional<int> most;
    std::istringstream stream(text);
    for (std::string item; std::getline(stream, item, ',');) {
        const std::optional<std::int64_t> count = number_of(std::string_view(item).substr(0, item.find('(')));
        if (!count || *count < 1 || *count > 1 << 16) return std::nullopt;
        most = std::max(most.value_or(1), static_cast<int>(*count));
    }
    return most;
}

}  // namespace

Limits process_limits(const std::string& root) {
    Limits limits;
    limit_memory(root, limits);
    limits.affinity_cores = affinity_cores();
    limits.is_bound = limits.affinity_cores < cgroup_cores(root);
    limits.quota_cores = quota_cores(root);
    return limits;
}

int local_ranks() {
    for (const char* name :
         {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
        if (const std::optional<int> count = environment_number(name)) return *count;
    }
    // Of the step that srun has started; a batch script, which is one process, has SLURM_NTASKS_PER_NODE alone.
    if (const char* tasks = std::getenv("SLURM_STEP_TASKS_PER_NODE"); tasks != nullptr) {
        if (const std::optional<int> count = most_tasks(tasks)) return *count;
    }
    return 1;
}

int cores_of_rank(const Limits& limits, int num_ranks) {
    const int cores = limits.is_bound ? limits.affinity_cores : limits.affinity_cores / num_ranks;
    const double quota = std::ceil(limits.quota_cores / num_ranks);
    return std::max(1, quota < static_cast<double>(cores) ? static_cast<int>(quota) : cores);
}

}  // namespace robocache
