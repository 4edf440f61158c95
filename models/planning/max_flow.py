"""The maximum flow from a source to a sink through edges of whole capacities.

A small network is solved here (Dinic's algorithm), a large one by scipy, which is faster there and takes half a second
to import: the command line plans a fleet file in less. Both give the same value of a maximum flow, and the same set of
nodes that its residual graph still reaches from the source (the smallest minimum cut).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    IntArray = np.ndarray[Any, np.dtype[np.integer[Any]]]

SMALL = 150
"""Up to this many edges the flow is solved here, which is no slower than handing the network to scipy."""
_SOURCE, _SINK = 0, 1


class FlowNetwork:
    """A network of named nodes, "source" and "sink" among them.

    It is built once and solved for many lists of capacities, each in the order in which the edges were added.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {"source": _SOURCE, "sink": _SINK}
        self._edges: list[tuple[int, int]] = []

    def number(self, node: object) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def edge(self, tail: object, head: object) -> None:
        self._edges.append((self.number(tail), self.number(head)))

    def maximum(self, capacities: list[int]) -> int:
        """Return the value of a maximum flow."""
        if len(self._edges) > SMALL:
            return self._by_scipy(capacities)[0]
        return self._by_dinic(capacities)[0]

    def reached_nodes(self, capacities: list[int]) -> set[int]:
        """Return the numbers of the nodes that one more unit could reach from the source in a maximum flow."""
        if len(self._edges) <= SMALL:
            return {node for node, level in enumerate(self._by_dinic(capacities)[1]) if level >= 0}
        import numpy as np
        from scipy.sparse.csgraph import breadth_first_order

        _, flow, capacity = self._by_scipy(capacities)
        residual = (capacity - flow).tocsr()
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        return set(breadth_first_order(residual, _SOURCE, directed=True, return_predecessors=False).tolist())

    # --- a small one ------------------------------------------------------------------------

    @cached_property
    def _outgoing(self) -> list[list[int]]:
        """The edges of each node: edge n forward is 2n, backward 2n + 1."""
        outgoing: list[list[int]] = [[] for _ in self._numbers]
        for n, (tail, head) in enumerate(self._edges):
            outgoing[tail].append(2 * n)
            outgoing[head].append(2 * n + 1)
        return outgoing

    @cached_property
    def _heads(self) -> list[int]:
        return [node for tail, head in self._edges for node in (head, tail)]

    def _by_dinic(self, capacities: list[int]) -> tuple[int, list[int]]:
        """Return the value, and each node's distance from the source in the last residual graph; -1: out of reach."""
        left = [room for capacity in capacities for room in (capacity, 0)]
        value = 0
        while (levels := self._levels(left))[_SINK] >= 0:
            tried = [0] * len(self._numbers)
            while path := self._path(left, levels, tried):
                sent = min(left[edge] for edge in path)
                for edge in path:
                    left[edge] -= sent
                    left[edge ^ 1] += sent
                value += sent
        return value, levels

    def _levels(self, left: list[int]) -> list[int]:
        levels = [-1] * len(self._numbers)
        levels[_SOURCE] = 0
        queue = [_SOURCE]
        for node in queue:
            for edge in self._outgoing[node]:
                head = self._heads[edge]
                if left[edge] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels

    def _path(self, left: list[int], levels: list[int], tried: list[int]) -> list[int]:
        """Return edges with room from the source to the sink, each one level on; [] where these levels have no more.

        `tried`: how many edges of each node are known to lead nowhere.
        """
        path: list[int] = []
        node = _SOURCE
        while node != _SINK:
            edges = self._outgoing[node]
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if left[edge] and levels[self._heads[edge]] == levels[node] + 1:
                    path.append(edge)
                    node = self._heads[edge]
                    break
                tried[node] += 1
            else:
                if not path:
                    return []
                node = self._heads[path.pop() ^ 1]
                tried[node] += 1
        return path

    # --- a large one ------------------------------------------------------------------------

    @cached_property
    def _layout(self) -> tuple[IntArray, IntArray, IntArray]:
        """The order of the edges by tail and head, and scipy's indices and row pointers."""
        import numpy as np

        edges = np.array(self._edges, dtype=np.int32).reshape(-1, 2)
        order = np.lexsort((edges[:, 1], edges[:, 0]))
        counts = np.bincount(edges[:, 0], minlength=len(self._numbers))
        pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return order, edges[order, 1], pointers

    def _by_scipy(self, capacities: list[int]) -> tuple[int, Any, Any]:
        """Return the value, and flow and capacities as matrices of node by node."""
        import numpy as np
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        order, indices, pointers = self._layout
        size = len(self._numbers)
        data = np.array(capacities, dtype=np.int64)[order]
        rooms = np.minimum(data, 2**31 - 1).astype(np.int32)
        capacity = csr_array((rooms, indices, pointers), shape=(size, size))
        answer = maximum_flow(capacity, _SOURCE, _SINK, method="dinic")
        return int(answer.flow_value), answer.flow, capacity
