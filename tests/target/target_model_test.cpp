// SPDX-License-Identifier: MIT
// The packed forward against goldens of both bundled targets, against a double reference of every family, and against itself: documents in
// a pack equal themselves alone.
#include "target/target_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "io/safetensors.h"
#include "kernels/linear.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "target/loaded_target.h"
#include "target/toy_target.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

using namespace dflash::testing;  // NOLINT: test helpers

const std::string kFixtures = DFLASH_FIXTURES;

std::vector<std::int64_t> all_taps(std::int64_t layers) {
    std::vector<std::int64_t> taps(static_cast<std::size_t>(layers) + 1);
    std::iota(taps.begin(), taps.end(), -1);
    return taps;
}

TargetForwardSettings everything(const std::string& folder, std::int64_t max_tokens) {
    return {max_tokens, all_taps(read_target_config(folder).layers), true};
}

Ids random_ids(std::int64_t n, std::int64_t vocabulary, std::uint64_t seed) {
    Philox rng(seed, 3);
    Ids ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(vocabulary))));
    return ids;
}

std::vector<float> logits_of(const LoadedTarget& target, const Tensor& final_state) {
    const DeviceBuffer logits(target.context.device(), DType::kF32, {final_state.rows(), target.config.vocabulary});
    linear_forward(target.context, {final_state, target.weights.head, logits});
    return target.values(logits);
}

std::vector<float> rows_of(const std::vector<float>& all, std::int64_t columns, std::int64_t begin, std::int64_t count) {
    return {all.begin() + begin * columns, all.begin() + (begin + count) * columns};
}

template <typename A, typename B>
::testing::AssertionResult close_vectors(const std::vector<A>& got, const std::vector<B>& ref, Tolerance tolerance) {
    return close(std::span<const A>(got), std::span<const B>(ref), tolerance);
}

struct BundledTarget {
    const char* folder;
    const char* name;
};
const auto kBundled = ::testing::Values(BundledTarget{"tiny-qwen3", "Qwen3"}, BundledTarget{"tiny-qwen3.5", "Hybrid"});

class Golden : public DeviceCases<BundledTarget> {
protected:
    Golden() : file(kFixtures + "/golden/" + c_.folder + ".safetensors") {}
    std::vector<float> floats(const std::string& name) const {
        const SafetensorsEntry* entry = file.find(name);
        EXPECT_NE(entry, nullptr) << name;
        const auto* values = reinterpret_cast<const float*>(entry->data);
        return {values, values + entry->elements()};
    }
    std::vector<std::int32_t> integers(const std::string& name) const {
        const SafetensorsEntry* entry = file.find(name);
        EXPECT_NE(entry, nullptr) << name;
        std::vector<std::int32_t> values;
        for (std::int64_t i = 0; i < entry->elements(); ++i) {
            values.push_back(entry->dtype == "I64" ? static_cast<std::int32_t>(reinterpret_cast<const std::int64_t*>(entry->data)[i])
                                                   : reinterpret_cast<const std::int32_t*>(entry->data)[i]);
        }
        return values;
    }
    SafetensorsFile file;
};

// All golden documents in one packed batch; each golden was made from its document alone.
TEST_P(Golden, EveryLayerAndTheArgmaxAgree) {
    const std::string folder = kFixtures + "/" + c_.folder;
    std::vector<Ids> documents;
    for (int i = 0; i < 3; ++i) documents.push_back(integers(fmt::format("{}.input_ids", i)));
    const PackedBatch batch = packed_batch(documents);
    LoadedTarget target(folder, everything(folder, batch.tokens()), {}, device());
    const Tolerance bound = tolerance(kModelF32);
    const TargetFeatures features = target.model->forward(target.context, batch);
    const std::int64_t hidden = target.config.hidden, vocabulary = target.config.vocabulary;
    const std::vector<float> taps = target.values(features.taps), final_states = target.values(features.final_state);
    const std::vector<float> logits = logits_of(target, features.final_state);
    for (int i = 0; i < 3; ++i) {
        SCOPED_TRACE(fmt::format("document {}", i));
        const std::int64_t begin = batch.document_begin[static_cast<std::size_t>(i)];
        const std::int64_t rows = std::ssize(documents[static_cast<std::size_t>(i)]);
        for (std::int64_t layer = 0; layer < target.config.layers; ++layer) {
            const auto got = rows_of(tap_of(taps, features.taps.row_elements(), layer, hidden), hidden, begin, rows);
            EXPECT_TRUE(close_vectors(got, floats(fmt::format("{}.hidden.{}", i, layer)), bound)) << "entry " << layer;
        }
        const auto golden_final = floats(fmt::format("{}.hidden.{}", i, target.config.layers));
        EXPECT_TRUE(close_vectors(rows_of(final_states, hidden, begin, rows), golden_final, bound));

        const std::vector<float> own = rows_of(logits, vocabulary, begin, rows);
        const auto golden_argmax = integers(fmt::format("{}.argmax", i));
        ASSERT_EQ(std::ssize(golden_argmax), rows);
        std::vector<double> logsumexp;
        std::int64_t equal = 0;
        for (std::int64_t row = 0; row < rows; ++row) {
            const float* z = own.data() + row * vocabulary;
            equal += testing::argmax(z, vocabulary) == golden_argmax[static_cast<std::size_t>(row)] ? 1 : 0;
            double sum = 0;
            for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(z[v]));
            logsumexp.push_back(std::log(sum));
        }
        EXPECT_GE(equal, device().type == DeviceType::kCpu ? rows : rows * 9 / 10) << "of " << rows;  // bf16 turns near-ties
        EXPECT_TRUE(close_vectors(logsumexp, floats(fmt::format("{}.logsumexp", i)), bound));
        const auto tail = floats(fmt::format("{}.logits_tail", i));
        const std::int64_t tail_rows = std::ssize(tail) / vocabulary;
        EXPECT_TRUE(close_vectors(rows_of(own, vocabulary, rows - tail_rows, tail_rows), tail, bound));
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Targets, Golden, kBundled);

class Packed : public DeviceCases<BundledTarget> {};

TEST_P(Packed, DocumentsEqualThemselvesAlone) {
    // In bf16 the products of another row count round otherwise.
    const Tolerance bound = device().type == DeviceType::kCpu ? kChunkF32 : tolerance(kModelF32);
    const std::string folder = kFixtures + "/" + c_.folder;
    LoadedTarget target(folder, everything(folder, 256), {}, device());
    std::vector<Ids> documents;
    for (const std::int64_t n : {1, 63, 3, 64, 65, 1, 9}) documents.push_back(random_ids(n, 4000, static_cast<std::uint64_t>(n)));
    const PackedBatch batch = packed_batch(documents);
    const TargetFeatures together = target.model->forward(target.context, batch);
    const std::vector<float> taps = target.values(together.taps), final_state = target.values(together.final_state);
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const std::int64_t begin = batch.document_begin[i], rows = std::ssize(documents[i]);
        const TargetFeatures alone = target.model->forward(target.context, packed_batch({documents[i]}));
        const auto packed_taps = rows_of(taps, together.taps.row_elements(), begin, rows);
        EXPECT_TRUE(close_vectors(target.values(alone.taps), packed_taps, bound)) << rows << " tokens";
        const auto packed_final = rows_of(final_state, target.config.hidden, begin, rows);
        EXPECT_TRUE(close_vectors(target.values(alone.final_state), packed_final, bound)) << rows << " tokens";
    }
}

// Other tokens in front change nothing behind: conv window, state and attention all start over, to the bit.
TEST_P(Packed, EarlierDocumentsDoNotLeak) {
    const std::string folder = kFixtures + "/" + c_.folder;
    LoadedTarget target(folder, everything(folder, 128), {}, device());
    const Ids second = random_ids(9, 4000, 2);
    std::vector<float> first_run;
    for (const std::uint64_t seed : {11U, 12U}) {
        const TargetFeatures features = target.model->forward(target.context, packed_batch({random_ids(5, 4000, seed), second}));
        const std::vector<float> values = target.values(features.taps.slice_rows(5, 9));
        if (first_run.empty()) {
            first_run = values;
        } else {
            EXPECT_EQ(values, first_run);
        }
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Targets, Packed, kBundled);

// Every state of every layer of a toy checkpoint against the reference in double.
void expect_reference(const ToyTarget& toy, const std::string& folder, Device device, Tolerance bound) {
    LoadedTarget target(folder, everything(folder, 128), {}, device);
    const std::vector<Ids> documents = {random_ids(67, 97, 1), random_ids(2, 97, 2), random_ids(30, 97, 3)};
    const PackedBatch batch = packed_batch(documents);
    const TargetFeatures features = target.model->forward(target.context, batch);
    const std::int64_t hidden = target.config.hidden, vocabulary = target.config.vocabulary;
    const std::vector<float> taps = target.values(features.taps), final_states = target.values(features.final_state);
    const std::vector<float> logits = logits_of(target, features.final_state);
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const std::int64_t begin = batch.document_begin[i], rows = std::ssize(documents[i]);
        const auto expected = toy::Reference(toy).run(documents[i]);
        const auto flat = [](const toy::Rows& state) {
            std::vector<double> all;
            for (const auto& row : state) all.insert(all.end(), row.begin(), row.end());
            return all;
        };
        for (std::int64_t entry = 0; entry <= target.config.layers; ++entry) {
            const auto got = rows_of(tap_of(taps, features.taps.row_elements(), entry, hidden), hidden, begin, rows);
            EXPECT_TRUE(close_vectors(got, flat(expected[static_cast<std::size_t>(entry)]), bound))
                << "document " << i << " entry " << entry;
        }
        const auto states = static_cast<std::size_t>(target.config.layers) + 1;
        EXPECT_TRUE(close_vectors(rows_of(final_states, hidden, begin, rows), flat(expected[states]), bound)) << "document " << i;
        EXPECT_TRUE(close_vectors(rows_of(logits, vocabulary, begin, rows), flat(expected[states + 1]), bound)) << "document " << i;
    }
}

struct Family {
    toy::Kind kind;
    const char* name;
};
class Toy : public DeviceCases<Family> {
protected:
    void expect_reference(const ToyTarget& toy) const { dflash::expect_reference(toy, folder.path(), device(), tolerance(kModelF32)); }
    TemporaryFolder folder;
};

TEST_P(Toy, MatchesTheDoubleReference) {
    const ToyTarget toy = make_toy_target(c_.kind);
    save_toy_target(toy, folder.path());
    expect_reference(toy);
}

// A large eps from the config must reach every norm.
TEST_P(Toy, EveryNormUsesTheConfiguredEps) {
    ToyTarget toy = make_toy_target(c_.kind);
    toy.config["rms_norm_eps"] = 0.3;
    save_toy_target(toy, folder.path());
    expect_reference(toy);
}

TEST_P(Toy, TapsNameOutputsOfLayers) {
    const ToyTarget toy = make_toy_target(c_.kind);
    save_toy_target(toy, folder.path());
    const Ids ids = random_ids(20, 97, 4);
    LoadedTarget few(folder.path(), TargetForwardSettings{32, {0, 1, 3}, false}, {}, device());
    EXPECT_EQ((TargetForwardSettings{32, {0, 1, 3}, false}.layers_to_run(few.config)), 4);
    const TargetFeatures features = few.model->forward(few.context, packed_batch({ids}));
    EXPECT_FALSE(features.final_state.defined());
    const std::vector<float> taps = few.values(features.taps);
    const auto expected = toy::Reference(toy).run(ids);
    const std::int64_t layers[] = {0, 1, 3};
    for (std::int64_t k = 0; k < 3; ++k) {
        std::vector<double> flat;
        for (const auto& row : expected[static_cast<std::size_t>(layers[k]) + 1]) flat.insert(flat.end(), row.begin(), row.end());
        const auto got = tap_of(taps, features.taps.row_elements(), k, few.config.hidden);
        EXPECT_TRUE(close_vectors(got, flat, tolerance(kModelF32))) << layers[k];
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Families, Toy,
                            ::testing::Values(Family{toy::Kind::kQwen3, "Qwen3"}, Family{toy::Kind::kHybrid, "Hybrid"},
                                              Family{toy::Kind::kLlama3, "Llama3"}));

TEST(ToyHybrid, NestedConfigAndPrefixedNamesGiveTheSameBits) {
    const TemporaryFolder flat, nested;
    const ToyTarget toy = make_toy_target(toy::Kind::kHybrid);
    save_toy_target(toy, flat.path());
    save_toy_target(toy, nested.path(), ToyLayout::kVisionLanguage);
    const PackedBatch batch = packed_batch({random_ids(30, 97, 3)});
    LoadedTarget a(flat.path(), everything(flat.path(), 32), {});
    LoadedTarget b(nested.path(), everything(nested.path(), 32), {});
    EXPECT_TRUE(same_bits(a.model->forward(a.context, batch).taps, b.model->forward(b.context, batch).taps));
}

// Zero layer norms mean identity gain in the hybrid family, the gated norm is stored plainly.
TEST(ToyHybrid, ZeroNormsAreIdentityGains) {
    const TemporaryFolder folder;
    ToyTarget toy = make_toy_target(toy::Kind::kHybrid);
    for (auto& [name, tensor] : toy.tensors) {
        const bool gated = name.find("linear_attn.norm") != std::string::npos;
        const bool is_norm = name.find("norm.weight") != std::string::npos || name.find("layernorm") != std::string::npos;
        if (is_norm) std::fill(tensor.values.begin(), tensor.values.end(), gated ? 1.0F : 0.0F);
    }
    save_toy_target(toy, folder.path());
    expect_reference(toy, folder.path(), Device{}, kModelF32);
}

class Empty : public DeviceTest {};

TEST_P(Empty, BatchAndDocument) {
    const TemporaryFolder folder;
    save_toy_target(make_toy_target(toy::Kind::kHybrid), folder.path());
    LoadedTarget target(folder.path(), everything(folder.path(), 32), {}, device());
    EXPECT_EQ(target.model->forward(target.context, packed_batch({})).taps.rows(), 0);
    const Ids ids = random_ids(8, 97, 1);
    const Tensor taps = target.model->forward(target.context, packed_batch({{}, ids, {}})).taps;
    const std::vector<float> values = target.values(taps);
    EXPECT_EQ(values, target.values(target.model->forward(target.context, packed_batch({ids})).taps));
}

DFLASH_ON_EACH_DEVICE(Empty);

TEST(TargetModel, RefusesBatchesThatContradictThemselves) {
    const TemporaryFolder folder;
    save_toy_target(make_toy_target(toy::Kind::kQwen3), folder.path());
    LoadedTarget target(folder.path(), everything(folder.path(), 16), {});
    const PackedBatch good = packed_batch({random_ids(4, 97, 1), random_ids(5, 97, 2)});
    PackedBatch batch = good;
    batch.position[5] = 5;
    EXPECT_THROW(target.model->forward(target.context, batch), Error);
    batch = good;
    batch.document[3] = 1;
    EXPECT_THROW(target.model->forward(target.context, batch), Error);
    batch = good;
    batch.document_begin[1] = 5;
    EXPECT_THROW(target.model->forward(target.context, batch), Error);
    EXPECT_THROW(target.model->forward(target.context, packed_batch({random_ids(17, 97, 1)})), Error);
    EXPECT_NO_THROW(target.model->forward(target.context, good));
}

}  // namespace
}  // namespace dflash
