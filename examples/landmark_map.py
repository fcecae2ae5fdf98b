"""A map of landmarks from dead reckoning: Victoria Park, drawn into an image.

A truck drives through a park and sees trees. Its odometry alone ends far from where it began, and
only the trees that it sees again say so. A solve of everything at once from there ends in a wrong
minimum; solving more and more of the drive finds the right one.

    python examples/landmark_map.py [IMAGE.png]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import caspar
from caspar.io import read_gtsam

DRIVE = Path(__file__).parents[1] / "data" / "victoria_park.txt.bz2"


def main(arguments: Sequence[str] = ()) -> caspar.pose_graph.Summary:
    """Solve at once and by growing, print both; draw the better map if an image is named."""
    graph = read_gtsam(DRIVE)
    print(f"{graph}\nchi2 of dead reckoning: {caspar.pose_graph.chi2(graph):,.0f}")
    at_once = caspar.pose_graph.solve(graph, initialize="file")
    print(f"all at once: {at_once.chi2:,.1f} after {len(at_once.result.iterations)} iterations")
    grown = caspar.pose_graph.solve(graph, initialize="grow")
    print(f"grown:       {grown.chi2:,.1f}\n\n{grown.result}")
    if len(arguments) > 0:
        caspar.plot.plot_pose_graph(graph, grown.graph, grown.result, arguments[0])
    return grown


if __name__ == "__main__":
    main(sys.argv[1:])
