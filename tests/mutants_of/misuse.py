"""Mistakes in what course_lib/tensor_parallel/ says of copies, files and wrong arguments."""

from tests.mutation import Mutant

AT = "course_lib/tensor_parallel/"
TESTS = "tests/tensor_parallel/test_misuse.py::"
COPIES = TESTS + "test_copies_and_averages_work_and_files_are_refused[2-sequence]"
NAMED = TESTS + "test_what_is_handed_over_by_mistake_is_named"
DTYPES = TESTS + "test_another_dtype_and_the_meta_device[dtype0]"
KINDS = (
    "tests/tensor_parallel/test_loss_checks.py::"
    "test_targets_that_are_no_ids_and_logits_that_are_are_refused"
)
NAMES = TESTS + "test_the_names_that_a_port_needs_are_exported_and_no_file_is_hidden"


def mutant(name: str, file: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"misuse-{name}", file, old, new, (test,), why)


MUTANTS = [
    mutant(
        "pickled",
        AT + "on_ranks.py",
        "    def __reduce_ex__(self, protocol: int):\n        refuse_to_pickle(self)\n",
        "",
        COPIES,
        "torch.save(model) speaks of a ProcessGroup, and not of what to do",
    ),
    mutant(
        "copy-is-pickling",
        AT + "on_ranks.py",
        "    def __copy__(self):",
        "    def copied(self):",
        COPIES,
        "a shallow copy goes by the road of a file, and is refused",
    ),
    mutant(
        "tokens-shared",
        AT + "sequence.py",
        "made = memo[id(self)] = Tokens(self.group)",
        "made = memo[id(self)] = self",
        COPIES,
        "a copy of the model tells the first one how long the sequence is",
    ),
    mutant(
        "group-for-a-mesh",
        "course_lib/ranks.py",
        "    if not isinstance(mesh, DeviceMesh):",
        "    if False:",
        NAMED,
        "a group for a mesh ends in an AttributeError",
    ),
    mutant(
        "mesh-of-others",
        "course_lib/ranks.py",
        "    if mesh.get_coordinate() is None:",
        "    if False:",
        NAMED,
        "a rank outside the mesh ends in an IndexError",
    ),
    mutant(
        "any-model",
        AT + "parallelize.py",
        "    if not isinstance(model, (GPT, Block)):",
        "    if False:",
        NAMED,
        "another model ends in an AttributeError about blocks",
    ),
    mutant(
        "mesh-for-a-group",
        "course_lib/collectives/call.py",
        "    except (AttributeError, TypeError):\n        raise TypeError(",
        "    except ZeroDivisionError:\n        raise TypeError(",
        NAMED,
        "a mesh for a group ends in an AttributeError",
    ),
    mutant(
        "whole-numbers-as-activations",
        AT + "on_ranks.py",
        "    if not x.is_floating_point():",
        "    if False:",
        NAMED,
        "ids in a linear layer are told to become another dtype",
    ),
    mutant(
        "ids-of-any-kind",
        AT + "embedding.py",
        "    if kind not in (torch.int64, torch.int32):",
        "    if False:",
        NAMED,
        "activations as ids fail inside torch",
    ),
    mutant(
        "meta",
        AT + "embedding.py",
        '    if ids.is_meta and computes_on(group).type != "meta":',
        "    if False:",
        DTYPES,
        "a model without memory speaks of Tensor.item()",
    ),
    mutant(
        "whole-logits-taken",
        AT + "loss_checks.py",
        "    if not x.is_floating_point():",
        "    if False:",
        KINDS,
        "logits of whole numbers give a loss without a gradient",
    ),
    mutant(
        "function-hides-its-file",
        AT + "__init__.py",
        "    cross_entropy as vocabulary_parallel_cross_entropy,\n)\n",
        "    cross_entropy,\n)\n\nvocabulary_parallel_cross_entropy = cross_entropy\n",
        NAMES,
        "`from course_lib.tensor_parallel import cross_entropy` is no longer the file",
    ),
]
