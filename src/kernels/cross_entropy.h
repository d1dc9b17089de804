// SPDX-License-Identifier: MIT
// Row kernel of the loss: turns a chunk of logits into the gradient in place, before anything else reads them.
//   ce: loss = -log softmax(z)[label],             d_z = softmax(z) - onehot(label)
//   kl: loss = KL(softmax(t) || softmax(z)),       d_z = softmax(z) - softmax(t)
// Gradients are un-weighted: the row's weight multiplies the hidden gradient after the second product.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct CrossEntropyParams {
    Tensor logits;              // f32 (rows, V), in: logits, out: gradient (=)
    Tensor teacher_logits;      // optional f32 (rows, V): kl instead of ce; left undefined in content afterwards (scratch)
    Tensor labels;              // i32 (rows), in [0, V)
    Tensor loss;                // f32 (rows), =
    Tensor label_prob;          // f32 (rows), =: softmax(z)[label]
    Tensor correct;             // i32 (rows), =: 1 when the label is the (first) largest logit
    bool want_gradient = true;  // false: logits are left as they are
};
void cross_entropy_forward_backward(const Context& context, const CrossEntropyParams& params);

}  // namespace dflash
