"""Figures that reports are made of."""

from aitune.torch.task.outcome import Agreement, BatchMeasurement, OutputAgreement


def measured(*medians: tuple[int, float]) -> tuple[BatchMeasurement, ...]:
    return tuple(
        BatchMeasurement(size, median, median * 1.1, median * 1.2, median * 0.99, median * 1.01, 50)
        for size, median in medians
    )


def agreeing(error: float) -> Agreement:
    return Agreement(True, (OutputAgreement("output", error, error, 0.999999, 1e-7, 1e-5),), None, ("sample 0",))
