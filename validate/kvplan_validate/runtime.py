"""The runtime: run a plan's step graph with real tensors, streams and events.

It walks the same operations that the program and the simulator read. Each operation becomes one
action on the stream of its resource; each edge between resources becomes an event. On a machine
without CUDA the same actions run in order, which tests logic and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvplan_validate.state import State
from kvplan_validate.wiring import wire
from kvplan_validate.work import Work


class Runtime:
    """Runs decode steps of one plan.

    Args:
        state: what the plan's operations work on.
        work: makes them ready.
    """

    def __init__(self, state: State, work: Callable[[State], Work] = Work) -> None:
        """Make every operation ready."""
        self.state = state
        self.work = work(state)
        self.actions = self.work.actions()
        wire(self.actions, state.staging)
        self._events: list[Any] = [None] * len(self.actions)
        self._graph: Any = None

    def step(self) -> None:
        """One decode step; asynchronous on a GPU."""
        if self._graph is not None:
            self._graph.replay()
            return
        self.issue(reach_back=True)

    def issue(self, *, reach_back: bool) -> None:
        """Launch every action of a step.

        Args:
            reach_back: whether actions wait for those of the last step.
        """
        if not self.state.cuda:
            for action in self.actions:
                action.run()
            return
        events = self._events
        before_all, lane = torch.cuda.current_stream(), ""
        for index, action in enumerate(self.actions):
            stream = self.state.streams[action.lane]
            if action.lane != lane:
                torch.cuda.set_stream(stream)
                lane = action.lane
            for before in action.waits:
                stream.wait_event(events[before])
            if reach_back:
                for before in action.reaches_back:
                    if events[before] is not None:
                        stream.wait_event(events[before])
            action.run()
            if action.records:
                if events[index] is None:
                    events[index] = torch.cuda.Event()
                events[index].record(stream)
        torch.cuda.set_stream(before_all)

    def capture(self) -> None:
        """Turn the step into one CUDA graph; copies and host work included."""
        if not self.state.cuda:
            return
        self.issue(reach_back=True)
        self.synchronise()
        self._events = [None] * len(self.actions)
        graph = torch.cuda.CUDAGraph()
        main = self.state.streams["gpu"]
        others = [stream for name, stream in self.state.streams.items() if name != "gpu"]
        with torch.cuda.graph(graph, stream=main):
            for stream in others:
                stream.wait_stream(main)
            self.issue(reach_back=False)
            for stream in others:
                main.wait_stream(stream)
        self._graph = graph

    def close(self) -> None:
        """Wait for what was issued and drop the captured graph, actions and buffers."""
        self.synchronise()
        if self._graph is not None:
            self._graph.reset()
        self._graph, self.actions, self._events = None, [], []
        self.work.lane.close()

    def advance(self) -> None:
        """Keep the new token and move to the next position (eager mode)."""
        self.state.advance()

    def synchronise(self) -> None:
        """Wait until everything issued has run; raise what the CPU's part raised."""
        self.state.synchronise()
        self.work.lane.check()
