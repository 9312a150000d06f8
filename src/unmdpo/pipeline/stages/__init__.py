"""Every kind of stage by its name."""

from unmdpo.pipeline.stage import Kind
from unmdpo.pipeline.stages import convert, data, evaluation, pilots, policies, reference, scales

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("comparisons", 1, data.comparisons),
        Kind("validation", 1, data.validation),
        Kind("panel", 1, data.panel),
        Kind("converted", 1, convert.converted),
        Kind("encoded", 1, data.encoded),
        Kind("reference", 1, reference.reference, ranked=True),
        Kind("features", 1, reference.features),
        Kind("pilot", 1, pilots.pilot, ranked=True),
        Kind("oof", 1, pilots.out_of_fold),
        Kind("scale", 1, scales.scale),
        Kind("policy", 1, policies.policy, ranked=True),
        Kind("generation", 1, evaluation.generation),
        Kind("judgement", 1, evaluation.judgement),
        Kind("summary", 1, evaluation.summary),
    )
}
