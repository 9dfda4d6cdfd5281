// Runs a fuzz target without libFuzzer: every seed, then random changes of seeds for a while.
//   fuzz_shard SECONDS SEED_FOLDER
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

/// A few bytes flipped, cut out, doubled or replaced by a number that is often a limit.
std::string changed(std::string bytes, std::mt19937_64& random) {
    for (auto left = random() % 8 + 1; left > 0 && !bytes.empty(); --left) {
        const std::size_t at = random() % bytes.size();
        const std::size_t length = random() % 16;
        switch (random() % 5) {
            case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
            case 1: bytes[at] = static_cast<char>(random()); break;
            case 2: bytes.erase(at, length); break;
            case 3: bytes.insert(at, bytes.substr(at, length)); break;
            default: bytes.replace(at, 1, std::to_string((std::int64_t{1} << random() % 63) - 1)); break;
        }
    }
    return bytes;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    std::vector<std::string> seeds;
    for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
        std::ifstream file(entry.path(), std::ios::binary);
        seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    if (seeds.empty()) return 2;
    const auto run = [](const std::string& bytes) {
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    };
    for (const std::string& seed : seeds) run(seed);
    std::mt19937_64 random(1);
    long runs = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
    for (; std::chrono::steady_clock::now() < end; ++runs) run(changed(seeds[random() % seeds.size()], random));
    std::printf("%ld runs\n", runs);
}
