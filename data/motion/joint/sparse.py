"""Make sparse matrices of torch: matrices that store only their entries that are not 0.

    sparse_matrix    from entries in any order
    csr_matrix       from entries that are sorted by rows, without a copy
    product          of a sparse matrix and dense columns

The layout is CSR (compressed sparse rows), because products with it are fast on a CPU.

What must stay: the products are right with and without MKL (`product`), and no warning appears.

Tests: tests/parts/data/joint/test_sampling.py notices entries that are lost, and a warning.
"""

import warnings

import torch
from torch import Tensor


def sparse_matrix(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix in the layout CSR. Entries at the same place are added.

    rows, columns, values: row, column and value of each entry, (entries,).
    """
    # `coalesce` sorts the entries by row and column, and adds entries at the same place. The
    # indices are right by construction, so torch need not check them.
    entries = torch.sparse_coo_tensor(
        torch.stack((rows, columns)), values, shape, check_invariants=False
    ).coalesce()
    rows, columns = entries.indices()
    # bincount: number of entries of each row. Their sum up to row i is where row i + 1 begins. E.g.
    # rows with 2, 0 and 3 entries begin at 0, 2 and 2, and all entries end at 5: 0, 2, 2, 5.
    begins = torch.zeros(shape[0] + 1, dtype=torch.int32, device=rows.device)
    begins[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    return csr_matrix(begins, columns.int(), entries.values(), shape)


def csr_matrix(begins: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix in the layout CSR: its entries row by row.

    begins: (rows + 1,), where the entries of each row begin; the last value is the number of all
    entries. E.g. rows with 2, 0 and 3 entries: 0, 2, 2, 5. torch calls it `crow_indices`.
    columns, values: column and value of each entry.
    """
    with warnings.catch_warnings():
        # torch warns once in a process that its sparse matrices may still change. A user cannot act
        # on the warning, and only the product with dense columns is used here.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(begins, columns, values, shape, check_invariants=False)


def product(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the product of a sparse matrix (rows, n) and dense columns (n, C): (rows, C).

    `matrix @ columns` gives the same. But on a CPU it copies its result once more, which takes
    longer than the product itself.
    """
    # The sum must begin at 0. `new_empty` with beta=0 is not enough: without MKL (e.g. on ARM),
    # torch multiplies the old content of the memory by 0, and NaN * 0 is NaN.
    result = columns.new_zeros(len(matrix), columns.shape[1])
    return torch.addmm(result, matrix, columns, out=result)  # 0 + the product
