// Files somebody made to hurt: checksums are right, everything else may be wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cache/files/journal.hpp"
#include "cache/format/crc32c.hpp"
#include "cache/format/manifest.hpp"
#include "cache/format/safetensors.hpp"
#include "cache/shard.hpp"
#include "cache_cases.hpp"

namespace robocache {
namespace {

using namespace cache_detail;
using namespace cache_test;

/// `body` without its last brace, with the checksum it must have.
std::string sealed(std::string body) {
    body.pop_back();
    return body + ",\"crc32c\":\"" + hex(crc32c(body)) + "\"}\n";
}

constexpr const char* good_manifest =
    R"({"format":"robocache","version":1,"generation":1,"fingerprint":"f","episodes":2,"block_bytes":1048576,)"
    R"("metadata":{},"streams":[{"name":"arm","dtype":"float32","shape":[7],"kind":"vector","ragged":false,)"
    R"("details":{}}],"shards":[{"name":"shard-00000-00000001.safetensors","bytes":72,"header_bytes":64,)"
    R"("episodes":2,"header_crc32c":"00000000","blocks":"01234567"}],"files":[{"name":"episodes-00000001.parquet",)"
    R"("bytes":3,"crc32c":"89abcdef"}]})";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
}

TEST(HostileManifest, TheGoodOneIsRead) {
    const Manifest manifest = parse_manifest(sealed(good_manifest), "m");
    EXPECT_EQ(manifest.streams.at(0).name, "arm");
    EXPECT_EQ(parse_manifest(write_manifest(manifest), "m").shards.at(0).blocks,
              std::vector<std::uint32_t>{0x01234567});
}

TEST(HostileManifest, VideoNeedsItsVersion) {
    const std::string video = replaced(good_manifest, "\"kind\":\"vector\",\"ragged\":false",
                                       "\"kind\":\"image\",\"ragged\":false,\"codec\":\"av1\"");
    EXPECT_THROW((void)parse_manifest(sealed(replaced(video, "\"version\":1", "\"version\":2")), "m"), FormatError);
    const Manifest read = parse_manifest(sealed(replaced(video, "\"version\":1", "\"version\":3")), "m");
    EXPECT_NE(write_manifest(read).find("\"version\":3"), std::string::npos);
}

TEST(HostileManifest, BadOnesAreRefusedWithThePath) {
    const std::vector<std::pair<std::string, std::string>> changes = {
        {"shard-00000-00000001.safetensors", "../shard-00000-00000001.safetensors"},
        {"shard-00000-00000001.safetensors", "/etc/passwd"},
        {"shard-00000-00000001.safetensors", "shard-00001-00000001.safetensors"},
        {"shard-00000-00000001.safetensors", "shard-00000-00000002.safetensors"},
        {"shard-00000-00000001.safetensors", "shard-00000-00000001.safetensors\\u0000"},
        {"episodes-00000001.parquet", "../episodes-00000001.parquet"},
        {"episodes-00000001.parquet", "x/episodes-00000001.parquet"},
        {"episodes-00000001.parquet", "episodes-00000002.parquet"},
        {"episodes-00000001.parquet", "episodes-00000001.tar.gz"},
        {"\"bytes\":72", "\"bytes\":9223372036854775807"},
        {"\"bytes\":72", "\"bytes\":-72"},
        {"\"bytes\":72", "\"bytes\":1e3"},
        {"\"bytes\":72", "\"bytes\":63"},
        {"\"header_bytes\":64", "\"header_bytes\":-9223372036854775808"},
        {"\"episodes\":2", "\"episodes\":3"},
        {"\"blocks\":\"01234567\"", "\"blocks\":\"\""},
        {"\"blocks\":\"01234567\"", "\"blocks\":\"0123456789\""},
        {"\"blocks\":\"01234567\"", "\"blocks\":\"0123456G\""},
        {"\"blocks\":\"01234567\"", "\"blocks\":\"0123ABCD\""},
        {"\"block_bytes\":1048576", "\"block_bytes\":0"},
        {"\"generation\":1", "\"generation\":0"},
        {"\"generation\":1", "\"generation\":4294967296"},
        {"\"version\":1", "\"version\":4"},
        {"\"ragged\":false", "\"ragged\":false,\"codec\":\"jpeg\""},  // of version 2, and no picture
        {"\"format\":\"robocache\"", "\"format\":\"other\""},
        {"\"fingerprint\":\"f\"", "\"fingerprint\":null"},
        {"\"metadata\":{}", "\"metadata\":[]"},
        {"\"name\":\"arm\"", "\"name\":\"__episodes__\""},
        {"\"name\":\"arm\"", "\"name\":\"\\u0007\""},
        {"\"float32\"", "\"complex64\""},
        {"\"shape\":[7]", "\"shape\":[4611686018427387904,4]"},
        {"\"shape\":[7]", "\"shape\":[-7]"},
        {"\"shape\":[7]", "\"shape\":[1,1,1,1,1,1,1,1]"},
        {"\"shape\":[7]", "\"shape\":7"},
        {"\"ragged\":false", "\"ragged\":0"},
        {"\"details\":{}", "\"details\":" + std::string(100, '[') + std::string(100, ']')},
        {"\"streams\":[", "\"streams\":[3,"},
        {"\"shards\":[", "\"shards\":{},\"x\":["},
        {"{\"format\"", "{\"format\":\"robocache\",\"format\""},
    };
    for (const auto& [from, to] : changes) {
        try {
            (void)parse_manifest(sealed(replaced(good_manifest, from, to)), "folder/manifest.json");
            ADD_FAILURE() << to;
        } catch (const FormatError& error) {
            EXPECT_TRUE(std::string_view(error.what()).starts_with("folder/manifest.json: ")) << error.what();
        }
    }
    EXPECT_THROW((void)parse_manifest(sealed("[]"), "m"), FormatError);
    EXPECT_THROW((void)parse_manifest(sealed("}"), "m"), FormatError);
}

std::string shard_bytes(std::string json, std::size_t data, std::optional<std::uint64_t> length = {}) {
    json.append((8 - json.size() % 8) % 8, ' ');
    const std::uint64_t stated = length.value_or(json.size());
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &stated, 8);
    return bytes + json + std::string(data, '\0');
}

TEST(HostileShard, BadHeadersAreRefused) {
    const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    EXPECT_EQ(parse_safetensors(shard_bytes(good, 8), "s").tensors.at(0).shape, std::vector<std::int64_t>{2});
    for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1} << 40, UINT64_MAX,
                                       UINT64_MAX - 7, std::uint64_t{1} << 63}) {
        EXPECT_THROW((void)parse_safetensors(shard_bytes(good, 8, length), "s"), FormatError) << length;
    }
    EXPECT_THROW((void)parse_safetensors(shard_bytes(good, 7), "s"), FormatError);
    EXPECT_THROW((void)parse_safetensors(shard_bytes(good, 9), "s"), FormatError);
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"[2]", "[3]"},
             {"[2]", "[-2]"},
             {"[2]", "[2.0]"},
             {"[2]", "[4611686018427387905,4]"},
             {"[2]", "[0,9223372036854775807,9223372036854775807]"},
             {"[2]", "[1,1,1,1,1,1,1,1,2]"},
             {"[0,8]", "[8,0]"},
             {"[0,8]", "[-8,0]"},
             {"[0,8]", "[0,8,16]"},
             {"[0,8]", "[0,9223372036854775807]"},
             {"F32", "F8_E4M3"},
             {"F32", "f32"},
             {"\"a\":{", "\"__metadata__\":{\"x\":1},\"a\":{"},
             {"\"a\":{", "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"a\":{"},
             {"\"a\":{", "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]},\"a\":{"},
             {"\"a\":{", "\"a\":[],\"b\":{"}}) {
        EXPECT_THROW((void)parse_safetensors(shard_bytes(replaced(good, from, to), 8), "s"), FormatError) << to;
    }
    const std::string odd = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
    EXPECT_THROW((void)parse_safetensors(shard_bytes(odd, 6), "s"), FormatError);  // would be read unaligned
}

/// Lines with the checksums they must have.
std::string journal_of(const std::vector<std::string>& lines) {
    std::string text;
    std::uint32_t crc = 0;
    for (const std::string& line : lines) {
        crc = crc32c(line, crc);
        text += hex(crc) + " " + line + "\n";
    }
    return text;
}

const std::string first_journal_line = R"({"format":"robocache journal","version":1,"generation":7,"fingerprint":"f"})";

TEST(HostileJournal, EveryBitCountsAndATornEndDoesNot) {
    const std::vector<std::string> lines = {first_journal_line, R"({"creates":"shard-00000-00000007.safetensors"})",
                                            R"({"creates":"episodes-00000007.parquet"})",
                                            R"({"leaves":"episodes-00000007.parquet"})",
                                            R"({"replaces":["shard-00000-00000006.safetensors"]})"};
    const std::string text = journal_of(lines);
    const JournalEntries whole = parse_journal(text, "j");
    EXPECT_EQ(whole.creates, std::vector<std::string>{"shard-00000-00000007.safetensors"});
    EXPECT_EQ(whole.replaces, std::vector<std::string>{"shard-00000-00000006.safetensors"});
    EXPECT_EQ(whole.size_bytes, text.size());
    const std::size_t first = text.find('\n') + 1;
    for (std::size_t size = 0; size < text.size(); ++size) {
        if (size < first) {
            EXPECT_THROW((void)parse_journal(text.substr(0, size), "j"), FormatError);
        } else {
            EXPECT_LE(parse_journal(text.substr(0, size), "j").size_bytes, size);
        }
    }
    const std::set<std::string> allowed = {"shard-00000-00000007.safetensors", "episodes-00000007.parquet",
                                           "shard-00000-00000006.safetensors"};
    for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
        std::string bad = text;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
        try {
            const JournalEntries entries = parse_journal(bad, "j");
            EXPECT_LT(entries.size_bytes, text.size()) << bit;
            for (const std::string& name : entries.creates) EXPECT_TRUE(allowed.contains(name)) << name;
            for (const std::string& name : entries.replaces) EXPECT_TRUE(allowed.contains(name)) << name;
        } catch (const FormatError&) {
            EXPECT_LT(bit / 8, first);
        }
    }
}

TEST(HostileJournal, NamesThatNoWriterGivesDoNotCount) {
    for (const std::string name : {"../shard-00000-00000007.safetensors", "/etc/passwd", "notes.txt", "manifest.json",
                                   "shard-00000-00000006.safetensors", "x/shard-00000-00000007.safetensors", ""}) {
        EXPECT_TRUE(
            parse_journal(journal_of({first_journal_line, R"({"creates":")" + name + "\"}"}), "j").creates.empty());
    }
    for (const std::string name : {"../shard-00000-00000006.safetensors", "notes.txt", "manifest.json",
                                   "shard-00000-00000007.safetensors", "shard-00000-00000008.safetensors"}) {
        EXPECT_TRUE(
            parse_journal(journal_of({first_journal_line, R"({"replaces":[")" + name + "\"]}"}), "j").replaces.empty());
    }
    for (const std::string line :
         {R"({"creates":"shard-00000-00000007.safetensors"})", R"([])", R"({})", R"(3)",
          R"({"format":"robocache journal","version":2,"generation":7,"fingerprint":"f"})",
          R"({"format":"robocache journal","version":1,"generation":0,"fingerprint":"f"})",
          R"({"format":"robocache journal","version":1,"generation":4294967296,"fingerprint":"f"})",
          R"({"format":"other","version":1,"generation":7,"fingerprint":"f"})"}) {
        EXPECT_THROW((void)parse_journal(journal_of({line}), "j"), FormatError) << line;
    }
    EXPECT_THROW((void)parse_journal("", "j"), FormatError);
}

class HostileCache : public CacheTest {
protected:
    void SetUp() override {
        CacheTest::SetUp();
        const std::vector<CacheStream> streams = some_streams();
        CacheWriter writer(folder, streams);
        for (unsigned e = 0; e < 3; ++e) writer.add(e, make_episode(streams, e).rows);
        writer.commit();
    }
    fs::path shard() const { return folder / "shard-00000-00000001.safetensors"; }

    /// Puts a number into a tensor of the shard, and right checksums into the manifest.
    void put(const std::string& tensor, std::size_t i, std::int64_t number) {
        std::string bytes = read_bytes(shard());
        const ShardHeader header = parse_safetensors(bytes, "s");
        for (const TensorEntry& entry : header.tensors) {
            if (entry.name != tensor) continue;
            std::memcpy(bytes.data() + header.size_bytes + entry.begin + i * 8, &number, 8);
        }
        write_bytes(shard(), bytes);
        Manifest manifest = parse_manifest(read_bytes(folder / "manifest.json"), "m");
        BlockSums sums;
        sums.add(std::string_view(bytes).substr(static_cast<std::size_t>(header.size_bytes)));
        manifest.shards[0].blocks = sums.finish();
        write_bytes(folder / "manifest.json", write_manifest(manifest));
    }
};

TEST_F(HostileCache, OffsetsOutsideTheirTensorAreAnErrorWhereTheyAreUsed) {
    for (const char* tensor :
         {"arm/offsets", "/lidar/points/offsets", "/lidar/points/splits", "__episodes__/offsets"}) {
        for (const std::int64_t number : {INT64_MIN, std::int64_t{-1}, std::int64_t{1} << 40, INT64_MAX}) {
            TearDown();
            SetUp();
            put(tensor, 1, number);
            const CacheReader reader(folder);
            EXPECT_THROW((void)contents(reader), FormatError) << tensor << number;
            EXPECT_FALSE(reader.verify().empty());
        }
    }
    TearDown();
    SetUp();
    put("arm/times", 1, INT64_MIN);
    EXPECT_EQ(CacheReader(folder).verify().size(), 1U);
}

TEST_F(HostileCache, LinksPipesAndFoldersAreNotShards) {
    const fs::path elsewhere = root / "elsewhere";
    fs::rename(shard(), elsewhere);
    fs::create_symlink(elsewhere, shard());
    EXPECT_THROW(CacheReader{folder}, FormatError);
    fs::remove(shard());
    ASSERT_EQ(mkfifo(shard().c_str(), 0600), 0);
    EXPECT_THROW(CacheReader{folder}, FormatError);
    fs::remove(shard());
    fs::create_directory(shard());
    EXPECT_THROW(CacheReader{folder}, FormatError);
    fs::remove(shard());
    fs::rename(folder / "manifest.json", root / "manifest.json");
    fs::create_symlink(root / "manifest.json", folder / "manifest.json");
    EXPECT_THROW(CacheReader{folder}, FormatError);
    EXPECT_THROW(CacheWriter(folder, {}), FormatError);
    EXPECT_THROW(CacheReader{root / "nowhere"}, FormatError);
    EXPECT_THROW(CacheReader{elsewhere}, FormatError);
}

TEST_F(HostileCache, AShardOfOtherStreamsIsRefused) {
    Manifest manifest = parse_manifest(read_bytes(folder / "manifest.json"), "m");
    const auto refused = [&](const auto& change) {
        Manifest other = manifest;
        change(other);
        write_bytes(folder / "manifest.json", write_manifest(other));
        EXPECT_THROW(CacheReader{folder}, FormatError);
    };
    refused([](Manifest& m) { m.streams[0].shape = {8}; });
    refused([](Manifest& m) { m.streams[0].dtype = DType::f64; });
    refused([](Manifest& m) { m.streams[0].ragged = true; });
    refused([](Manifest& m) { m.streams[1].ragged = false; });
    refused([](Manifest& m) { m.streams[0].name = "leg"; });
    refused([](Manifest& m) { m.streams.pop_back(); });
    refused([](Manifest& m) { m.shards[0].num_episodes = 4; });
    refused([](Manifest& m) { ++m.shards[0].size_bytes; });
    refused([](Manifest& m) { ++m.shards[0].header_crc32c; });
}

}  // namespace
}  // namespace robocache
