"""What `conjugates` of lesson 03 says to a pair: each misconception, then its words."""

from __future__ import annotations

from course_lib.classroom.checks.words import Words

SAYS = Words("""
not a pair: `conjugates(group)` gave a {kind} back; expected are two functions, `return f, g`. Each
  takes one tensor, and the group is the one given here.
not like x: {which}(x) gave {got} on rank {rank}, {when}; both f and g give a tensor of x's shape
  {shape} and dtype float64.{advice}
swapped: The two are exchanged: the first sums in the forward, the second does not. f stands at the
  entrance and hands x on; g stands at the exit and sums.
f in place: f(x) changed the x that it was given. Its caller may need it: hand on a view.
g in place #1: g(x) changed the x that it was given. `dist.all_reduce(t)` writes its result into t.
  The step that made x may have kept it for the backward, as exp keeps its result: sum a copy.
f changes its values #1: f(x) is n times x, a sum of equal ones. In the forward f does nothing.
f changes its values #2: f(x) is not x, {when}. In the forward f does nothing.
nothing summed: g(p) is p. The ranks hold parts of a sum, and g is where it is made.
mean: g(p) is the mean, the sum divided by {n}. The parts make a sum.
not the sum: g(p) is not the sum of all ranks' p, {when}.
no way back: No gradient came back through {which}, {when}. What is made from x.detach() or under
  no_grad has no history; a torch.autograd.Function, called by `.apply(x)`, has.
nothing summed on the way back: Through f each rank gets its own part of x's gradient. All ranks
  used x: its gradient is the sum of what all of them send back, a broadcast transposed.
mean on the way back #1: Through f comes the mean of the ranks' gradients. A mean belongs to ranks
  that see different data; here all are parts of one net.
gradient of f: The gradient of x through f is not the sum of the ranks' gradients, {when}.
summed on the way back as well: Through g comes {n} times the gradient. After g every rank goes on
  alike with the same sum, so the gradient that comes is complete, on each of them.
mean on the way back #2: Through g comes the gradient / {n}. Each term of a sum has all of it.
gradient of g: The gradient of a term of g's sum is not that of the sum, {when}.
sends where nothing is owed: The numbers are right, but {which} also calls {ops} on the way {way}
  (rank {rank}, {when}). What is the same on every rank need not be sent.
more than one all-reduce: The numbers are right, but {which} calls {ops} on the way {way} and has to
  send {bytes} bytes (rank {rank}, {when}); one all-reduce, {most:g} bytes, is enough.
f in place on the way back: In h = 5 u + f(x) the gradient of h goes to both branches, as one
  tensor. f's backward summed in place, and the branch of u, which no other rank knows, got {what}
  (rank {rank}, {when}). Sum a copy.
f beside a branch: In h = 5 u + f(x) the gradient of x is not the sum of the ranks' gradients (rank
  {rank}, {when}); alone, f gave it.
g in place #2: With p = exp(q), and g(p), g(2 p) and p itself in use, the gradient of q is not right
  (rank {rank}, {when}), though g alone is. Is what exp has kept still what it was?
one buffer for all #1: After g(p) and g(2 p) the first result is not what it was (rank {rank},
  {when}). Each result needs memory of its own: a caller may use both.
a hook on x itself: In f(x) · c + f(x) · w the gradient of x is {n} times too large (rank {rank},
  {when}): each use of f sums all that comes to x, also what came by the other. Sum what comes back
  through one use: f gives a tensor of its own, such as a view.
one buffer for all #2: In f(x) · c + f(x) · w the gradient of x is not the sum of what both uses
  send back (rank {rank}, {when}), though each alone is right. Is one written over the other?
two at once: Two pairs were made, each for a group of its own, and both were used before the first
  backward began, as in a net with two kinds of parallelism. {what} Does `conjugates` keep its group
  where the next call finds it: in a class, a global name, a default argument?
another dtype: {which}(x) is of dtype {got} for an x of dtype {dtype} (rank {rank}, {when}): it
  comes back with x's.
another shape: x may have any shape and dtype. Float64 matrices come out right. {what}
g in place #3: g(p) changed a p that wants no gradient (rank {rank}, {when}): sum a copy.
only with a gradient: Of tensors that want no gradient f or g is another (rank {rank}, {when}).
another layout #1: Tensors in one block of memory come out right; transposed ones, or a gradient of
  which all elements are one number in memory, do not (rank {rank}, {when}). torch.empty_like and
  clone keep the strides; .contiguous() makes one block.
another layout #2: Where all ranks store a tensor alike the sums are right. Where one rank stores it
  by columns and the others by rows they are not (rank {rank}, {when}): a collective adds memory to
  memory. clone keeps the strides; .contiguous() makes one block.
not the dense net: After {steps} steps of a net of two layers{how}, {wrong} on rank {rank} are not
  those of one process ({when}). Does anything of an earlier call stay in f or g?
""")
