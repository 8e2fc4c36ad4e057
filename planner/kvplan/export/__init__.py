"""Exports: what a plan says, in the words and units of the runtimes that people deploy.

    plan -> `demand.CacheDemand`   bytes per place, tokens, format
    user -> `deployment.Deployment`  ranks, host memory, folders
    both -> an `exporter.Exporter`, one file per runtime -> `exporter.Export`

`registry.export_plan` does it all; `registry.REGISTRY` lists the runtimes: adding one is a file
here and a line there.
"""
