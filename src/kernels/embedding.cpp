// SPDX-License-Identifier: MIT
#include "kernels/embedding.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

namespace {

void check_ids(const Context& context, const char* op, const Tensor& ids, std::int64_t limit) {
    check_vector(context, op, "ids", ids, DType::kI32, ids.elements());
    if (context.device().type != DeviceType::kCpu) return;
    for (std::int64_t i = 0; i < ids.elements(); ++i) {
        const std::int32_t id = ids.i32()[i];
        DFLASH_CHECK(id >= 0 && id < limit, "{}: id {} at {} of a table of {} rows", op, id, i, limit);
    }
}

}  // namespace

void gather_rows(const Context& context, const GatherRowsParams& p) {
    constexpr const char* kOp = "gather_rows";
    const std::int64_t columns = p.table.row_elements();
    check_rows(context, kOp, "table", p.table, p.table.dtype, p.table.rows(), columns);
    check_rows(context, kOp, "y", p.y, p.table.dtype, p.ids.elements(), columns);
    check_ids(context, kOp, p.ids, p.table.rows());
    if (p.ids.elements() > 0) on_device(context.device(), cpu::gather_rows, cuda::gather_rows)(context, p);
}

void scatter_rows(const Context& context, const ScatterRowsParams& p) {
    constexpr const char* kOp = "scatter_rows";
    const std::int64_t columns = p.y.row_elements();
    check_rows(context, kOp, "y", p.y, p.x.dtype, p.y.rows(), columns);
    check_rows(context, kOp, "x", p.x, p.x.dtype, p.ids.elements(), columns);
    if (p.scale.defined()) check_vector(context, kOp, "scale", p.scale, DType::kF32, p.ids.elements());
    check_ids(context, kOp, p.ids, p.y.rows());
    if (p.ids.elements() > 0) on_device(context.device(), cpu::scatter_rows, cuda::scatter_rows)(context, p);
}

}  // namespace dflash
