// SPDX-License-Identifier: MIT
#include "cli/train_flags.h"

#include <type_traits>

namespace dflash::cli {

void add_train_flags(CLI::App& command, RunSettings& settings) {
    visit_settings(settings, [&](const char* key, SettingScope, auto& field, const char* help) {
        using Field = std::remove_reference_t<decltype(field)>;
        const std::string flag = std::string("--") + key;
        if constexpr (std::is_same_v<Field, bool>) {
            command.add_flag(flag, field, help);
        } else if constexpr (std::is_same_v<Field, std::vector<std::int64_t>>) {
            command.add_option(flag, field, help)->delimiter(',');
        } else {
            command.add_option(flag, field, help)->capture_default_str();
        }
    });
}

void note_given_flags(const CLI::App& command, RunSettings& settings) {
    visit_settings(settings, [&](const char* key, SettingScope, auto&, const char*) {
        if (command.get_option(std::string("--") + key)->count() > 0) settings.given.insert(key);
    });
}

}  // namespace dflash::cli
