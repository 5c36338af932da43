"""Convert the network of S-VRT and its training.

    convert_network        how RGB and spikes are joined, and the optical flow
    report_regularizers    regularizers of the weights, which have no counterpart

What must stay: an option without a counterpart is a problem. It is never left out without a message
(test_the_problems_of_a_file_are_named_at_once).
Free to change: which ways to join have a counterpart.

A `Conversion` (svrt_conversion.py) holds the options: `has` asks for a key of S-VRT, `take` removes
the key, `drop` removes and reports the key, and `set_ours` sets a key of ours.
"""

from scripts.parts.convert_options.svrt_conversion import SPLITS, Conversion, Problem


def convert_network(conversion: Conversion) -> None:
    """Convert the way in which RGB and spikes are joined, and the optical flow network."""
    # Without spikes, netG.in_chans stays, because it then says the number of channels of a frame.
    if conversion.has("datasets.train.spike"):
        conversion.drop("netG.in_chans", "it follows from netG.fusion and the spike channels")

    # Convert the option that says how RGB and spikes are joined. One version of S-VRT has this
    # option in the section netG, and another version has it in the section of each split.
    input_keys = ["netG.input_mode"]
    input_keys += [f"{split}.input_pack_mode" for split in SPLITS]
    for key in input_keys:
        mode = conversion.take(key)
        if mode == "concat":
            conversion.set_ours("netG.fusion", {"type": "concat"}, old=key)
        elif mode is not None:
            conversion.problems[key] = Problem(
                what=f"{mode!r}: S-VRT's other ways to join RGB and spikes have no counterpart",
                do=f"give --drop {key}, and give netG.fusion=exposure, gated, concat or none",
            )

    convert_optical_flow(conversion)


def convert_optical_flow(conversion: Conversion) -> None:
    """Convert the section of the optical flow network to `netG.spynet_path`, the file of SpyNet.

    E.g. {"module": "spynet", "checkpoint": "spynet.pth"} gives netG.spynet_path "spynet.pth". Any
    other module is a problem, because the only optical flow network here is SpyNet.
    """
    key = "netG.optical_flow"
    do = "give netG.spynet_path=FILE"
    # If --drop names the whole section, the path of the weights in it (`checkpoint`) is lost, too.
    # The report says so.
    if key in conversion.dropped:
        conversion.differences[key] = f"its weights went with it: {do}"
    flow = conversion.take(key)  # None if there is no such section
    if not isinstance(flow, dict):
        return
    module = flow.pop("module", "spynet")
    if module != "spynet":
        conversion.problems[f"{key}.module"] = Problem(
            what="the only flow network here is SpyNet", do=f"give --drop {key}, and {do}"
        )
        return
    weights_file = flow.pop("checkpoint", None)
    conversion.set_ours("netG.spynet_path", weights_file, old=key)
    # If another parameter has a value, it is a problem, and the user decides. The values null,
    # false and 0, and empty values, are left out.
    for name, value in flow.items():
        if value:
            conversion.problems[f"{key}.{name}"] = Problem(
                what="SpyNet has no parameters here",
                do=f"give --drop {key}.{name}, if it may be left out",
            )


def report_regularizers(conversion: Conversion) -> None:
    """Report the regularizers of S-VRT's training, which this project does not have."""
    for key in ("train.G_regularizer_orthstep", "train.G_regularizer_clipstep"):
        if conversion.values.get(key) is not None:
            conversion.differences[key] = (
                "there is no such regularizer; its effect has not been measured"
            )
