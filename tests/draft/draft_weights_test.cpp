// SPDX-License-Identifier: MIT
#include "draft/draft_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "base/bf16.h"
#include "base/error.h"
#include "draft/draft_export.h"
#include "draft/provenance.h"
#include "draft_case.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "support/close.h"
#include "support/errors.h"

namespace dflash::testing {
namespace {

class DraftFolder : public ::testing::Test {
protected:
    DraftFolder()
        : spec_(toy_spec({sliding(6), kFull})),
          arena_(Device{}, make_plan({"all"}, draft_tensor_buffers(spec_, "w", Category::kWeights, {0, 0}))),
          weights_(bind_draft_tensors(spec_, "w", arena_)),
          folder_(::testing::TempDir() + "draft_weights_test_" + ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
        initialise_draft({weights_, {}}, 5);
    }
    ~DraftFolder() override { std::filesystem::remove_all(folder_); }

    void save(SavedAs saved_as = SavedAs::kBf16) {
        DraftProvenance provenance;
        provenance.training = {{"template", "chatml"}, {"alignment_shift", 0}};
        HostReader reader(Stream{});
        save_draft(folder_, spec_, toy_target(spec_), weights_, provenance, reader, saved_as);
    }
    // Writes the saved tensors again, changed: rename or drop (empty name), or replace the shape.
    void rewrite(const std::function<void(std::map<std::string, SafetensorsWriter::Declared>&)>& change) {
        std::map<std::string, SafetensorsWriter::Declared> tensors;
        for (const NamedTensor& entry : named_tensors(weights_)) {
            std::vector<std::int64_t> dims;
            for (int i = 0; i < entry.tensor.shape.rank(); ++i) dims.push_back(entry.tensor.shape[i]);
            tensors[entry.name] = {entry.name, "F32", dims};
        }
        change(tensors);
        std::vector<SafetensorsWriter::Declared> declared;
        for (const auto& [name, tensor] : tensors) declared.push_back(tensor);
        SafetensorsWriter writer(folder_ + "/model.safetensors", declared);
        for (const auto& tensor : declared) {
            std::int64_t elements = 1;
            for (const std::int64_t d : tensor.shape) elements *= d;
            const std::vector<char> bytes(static_cast<std::size_t>(elements * (tensor.dtype == "I64" ? 8 : 4)), 0);
            writer.write(tensor.name, bytes.data(), bytes.size());
        }
        writer.finish();
    }
    std::string load_refusal() {
        try {
            load_draft(folder_, spec_, {weights_, {}});
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
            return error.what();
        }
        return {};
    }

    DraftSpec spec_;
    Arena arena_;
    DraftTensors weights_;
    std::string folder_;
};

TEST_F(DraftFolder, InitialValues) {
    const std::vector<double> fc = to_double(weights_.fc);
    double sum = 0;
    double squares = 0;
    for (const double v : fc) {
        sum += v;
        squares += v * v;
    }
    const auto count = static_cast<double>(fc.size());
    EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.002);
    EXPECT_NEAR(sum / count, 0.0, 4 * 0.02 / std::sqrt(count));
    for (const double v : to_double(weights_.layers[1].k_norm)) EXPECT_EQ(v, 1.0);
    EXPECT_NE(to_double(weights_.layers[0].gate_proj), to_double(weights_.layers[0].up_proj));
    EXPECT_NE(to_double(weights_.layers[0].gate_proj), to_double(weights_.layers[1].gate_proj));

    // A tensor's values depend on its name and the seed, not on the rest of the drafter.
    const DraftSpec other = toy_spec({kFull});
    const Arena arena(Device{}, make_plan({"all"}, draft_tensor_buffers(other, "w", Category::kWeights, {0, 0})));
    const DraftTensors weights = bind_draft_tensors(other, "w", arena);
    initialise_draft({weights, {}}, 5);
    EXPECT_EQ(to_double(weights.layers[0].down_proj), to_double(weights_.layers[0].down_proj));
    initialise_draft({weights, {}}, 6);
    EXPECT_NE(to_double(weights.layers[0].down_proj), to_double(weights_.layers[0].down_proj));
}

TEST_F(DraftFolder, SavedInF32LoadsToTheSameBits) {
    save(SavedAs::kF32);
    const std::vector<std::vector<double>> before = tensor_values(Context(), weights_);
    initialise_draft({weights_, {}}, 6);
    EXPECT_EQ(read_draft_spec(folder_), spec_);
    load_draft(folder_, spec_, {weights_, {}});
    EXPECT_EQ(tensor_values(Context(), weights_), before);
    EXPECT_EQ(read_draft_provenance(folder_).training["template"], "chatml");
}

TEST_F(DraftFolder, IsPublishedAsBf16WithTheTablesNamesAndShapes) {
    save();
    const SafetensorsFile file(folder_ + "/model.safetensors");
    const auto table = draft_tensor_table(spec_);
    EXPECT_EQ(file.entries().size(), table.size());
    for (const DraftTensorDecl& decl : table) {
        const SafetensorsEntry* entry = file.find(decl.name);
        ASSERT_NE(entry, nullptr) << decl.name;
        EXPECT_EQ(entry->dtype, "BF16");
        ASSERT_EQ(entry->shape.size(), static_cast<std::size_t>(decl.shape.rank()));
        for (int i = 0; i < decl.shape.rank(); ++i) EXPECT_EQ(entry->shape[static_cast<std::size_t>(i)], decl.shape[i]);
    }
    std::vector<double> rounded;
    for (const double v : to_double(weights_.fc))
        rounded.push_back(static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(v)))));
    load_draft(folder_, spec_, {weights_, {}});
    EXPECT_EQ(to_double(weights_.fc), rounded);
    EXPECT_EQ(read_json_file(folder_ + "/config.json")["dtype"], "bfloat16");
}

TEST_F(DraftFolder, ListsAllFaultsAtOnce) {
    save();
    rewrite([](auto& tensors) {
        tensors.erase("fc.weight");
        tensors["norm.weight"].shape = {17};
        tensors["layers.0.mlp.up_proj.weight"].dtype = "I32";
        tensors["layers.0.attention_conv.base_kernel"] = {"layers.0.attention_conv.base_kernel", "F32", {2, 2, 16}};
    });
    const std::string message = load_refusal();
    for (const char* part :
         {"fc.weight is missing", "norm.weight has shape (17)", "up_proj.weight is of type I32", "attention_conv.base_kernel"}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
}

TEST_F(DraftFolder, RefusesPrunedVocabularies) {
    save();
    rewrite([](auto& tensors) { tensors["d2t"] = {"d2t", "I64", {20}}; });
    EXPECT_NE(load_refusal().find("pruned vocabulary"), std::string::npos);
}

TEST_F(DraftFolder, SpeculatorsLayoutCarriesCopiesAndLoads) {
    spec_ = toy_spec({kFull, kFull});
    const HostBuffer embedding = random_f32({spec_.vocabulary, spec_.hidden}, 1);
    const HostBuffer head = random_f32({spec_.vocabulary, spec_.hidden}, 2);
    HostReader reader(Stream{});
    save_speculators(folder_, {spec_, weights_, embedding, head}, toy_target(spec_), {}, reader, SavedAs::kF32);
    const std::vector<std::vector<double>> before = tensor_values(Context(), weights_);
    const DraftSpec read = read_draft_spec(folder_);
    EXPECT_TRUE(read.owns_embedding && read.owns_head);
    EXPECT_EQ(read.taps, spec_.taps);
    const SafetensorsFile file(folder_ + "/model.safetensors");
    HostBuffer copy = poisoned_f32({spec_.vocabulary, spec_.hidden});
    copy_entry_to_f32(*file.find("lm_head.weight"), file.path(), copy);
    EXPECT_EQ(to_double(copy), to_double(head));
    initialise_draft({weights_, {}}, 9);
    load_draft(folder_, read, {weights_, {}});
    EXPECT_EQ(tensor_values(Context(), weights_), before);

    EXPECT_NO_THROW(check_draft_copies(folder_, read, embedding, head, reader));
    EXPECT_TRUE(
        refuses([&] { check_draft_copies(folder_, read, head, head, reader); }, {"embed_tokens.weight", "differs from the target's"}));
    EXPECT_TRUE(refuses([&] { check_draft_copies(folder_, read, embedding, embedding, reader); }, {"lm_head.weight"}));
}

}  // namespace
}  // namespace dflash::testing
