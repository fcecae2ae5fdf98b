"""Sizes at which a solver chooses another way: one frozen value, handed to where it is used.

Users need none of it. Tests and experts pass `Solver(..., limits=Limits(...))`, for example to see
on a small problem what large ones do. Most numbers were measured on an H200; the figures stand
beside them. Cost tier: read once for each structure.
"""

from dataclasses import dataclass, fields
from numbers import Real

from caspar.errors import OptionError
from caspar.memory.accessors.sums.slots import ITEMS_OF_SLOT
from caspar.memory.tiling.node_tiles import NUM_NARROW_PARTNERS


@dataclass(frozen=True)
class Limits:
    """Thresholds of choices by problem size. None of them changes what a solve converges to.

    Where sparse matrices are factorised by one core (`BackendTraits.factorizes_in_parallel` is
    False, as on the processor), fields named `..._on_one_core` count.

    Attributes:
        max_factors_ahead: Instances of all factors up to which the device linearises at a candidate
            before the host has accepted it.
        large_jacobian_bytes: Bytes of stored Jacobians from which on candidates share their memory,
            so that the system is linearised again after a rejected step.
        max_items_beside: Instances of all factors and nodes up to which a solver keeps the systems
            of several structures, and binds the launches of one again for another structure.
        min_constant_nodes: Nodes of a type, if all are held, from which on they become constants of
            the factors, for which kernels are compiled; fewer are masked.
        min_instances_of_device: Instances of all factors for each of several devices; with fewer, a
            solve uses one device.
        max_narrow_partners: Nodes that remain, of one type, up to which items' places in node tiles
            have 32 bits; at most the default.
        items_of_slot: Items of a node on average for which a product has one more slot of it.
        max_dense: Unknowns of a matrix that `auto` factorises as a dense one.
        min_dense_on_one_core: Unknowns up to which `auto` factorises a matrix as a sparse one even
            if it is full.
        max_dense_on_one_core: Unknowns of a full matrix up to which `auto` factorises it; larger
            systems are left to PCG.
        max_orthogonal_work: Rows times unknowns squared up to which `auto` goes on with a QR
            decomposition of the Jacobian if a matrix proves to be ill-conditioned.
        full_share: Share of the entries from which on a matrix counts as full: factorising fills
            the rest.
        max_dense_for_sparse: Unknowns up to which a dense matrix takes the place of a sparse one
            where the library for that is not installed.
        max_matrix_quick_pcg: Unknowns of any matrix that `auto` forms where a node type is
            eliminated and no factor couples others of one type: PCG takes few iterations there.
        max_matrix_by_cost: Unknowns of a dense matrix that `auto` forms there, if a model of the
            costs says that it pays.
        max_sparse: Unknowns of a sparse matrix that `auto` forms.
        max_sparse_eliminated: The same where a node type is eliminated, which fills the matrix.
        max_auto_pairs: Pairs of items of eliminated nodes that `auto` lists.
        max_pairs_quick_pcg: The same on one core where no factor couples others of one type.
        max_fill_pairs: Pairs of items that are listed where a matrix was asked for.
        max_svd_work: Residuals times unknowns squared up to which a covariance is found from the
            singular values of the Jacobian.
        max_small_dense_covariance: Unknowns that remain up to which a covariance inverts a dense
            matrix without a look at how full it is.
        max_dense_covariance: The same of a matrix that is full.
        full_share_covariance: As `full_share`, for covariances.
        max_fit_in_float64: Nodes of eliminated types up to which `auto` takes float64 for a fit,
            where all other nodes are one of their type.
        max_wide_constant_bytes: Bytes of a constant argument in float64 up to which mixed precision
            keeps it in that type; larger ones are rounded to float32.

    Raises:
        OptionError: A limit is no number of at least 0, or `max_narrow_partners` above its default.
    """

    # measured up to 0.7 M factors: the host needs 40 us to decide, and what is done in vain grows
    max_factors_ahead: int = 1 << 20
    large_jacobian_bytes: int = 1 << 30
    # memory of some 100 MB for each
    max_items_beside: int = 1 << 17
    # a PCG iteration of 0.7 M observations takes 0.021 ms on an H200, and adding up over two H100
    # 0.010
    min_constant_nodes: int = 1
    min_instances_of_device: int = 500_000
    max_narrow_partners: int = NUM_NARROW_PARTNERS
    items_of_slot: int = ITEMS_OF_SLOT
    # a path with 616 unknowns takes 16 ms with cuSOLVER, and 5 with cuDSS; that analyses the
    # pattern for 10 to 15 ms once, so smaller ones gain too little
    max_dense: int = 500
    # RSLAB takes 0.5 ms for 189 unknowns, and 4.6 ms for 441
    min_dense_on_one_core: int = 500
    # with as many, 2,000 places behind the elimination of six beacons, QDLDL takes some 10 s a
    # step, LAPACK 0.3, and a whole solve by PCG 0.1
    max_dense_on_one_core: int = 4000
    # 0.4 s a step on two cores
    max_orthogonal_work: int = 2_000_000_000
    # RSLAB takes twice as long as LAPACK for a full matrix, and a tenth for the band of 170 cameras
    # along a street (1,530 unknowns)
    full_share: float = 0.3
    # 2 GB, and some 50 ms
    max_dense_for_sparse: int = 16_000
    # PCG then takes 10 to 30 iterations: on an H200 one is 0.012 ms, and a dense solve 0.27 ms with
    # 189 unknowns, 0.56 with 441
    max_matrix_quick_pcg: int = 60
    # 32 MB
    max_matrix_by_cost: int = 2000
    # factors of planar graphs of that size take some 100 MB
    max_sparse: int = 300_000
    max_sparse_eliminated: int = 40_000
    # more pairs cost more than PCG, which has one product for each item and iteration. The
    # processor lists as many in 3.6 s, in 1 GB, and a step of a chain with 2 M observations takes
    # it 0.5 s; a loose one of PCG 1.5
    max_auto_pairs: int = 1 << 24
    max_pairs_quick_pcg: int = 1 << 22
    # building the lists takes about 100 bytes for each
    max_fill_pairs: int = 1 << 27
    # a tenth of a second
    max_svd_work: int = 100_000_000
    max_small_dense_covariance: int = 1000
    # 0.8 GB, and two minutes on two cores
    max_dense_covariance: int = 10_000
    # QDLDL, whose factor the selected inverse takes, is slow where much is filled
    full_share_covariance: float = 0.1
    max_fit_in_float64: int = 100_000
    # pixels of 16 million observations: design record 0002 has what that costs
    max_wide_constant_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0.0:
                raise OptionError(f"limits: {field.name}={value!r}: must be a number of at least 0")
        if self.max_narrow_partners > NUM_NARROW_PARTNERS:
            raise OptionError(
                f"limits: max_narrow_partners={self.max_narrow_partners!r}: must be at most "
                f"{NUM_NARROW_PARTNERS}, which 32 bits hold"
            )
