"""Namespaces, computes and clusters, which Hue clients request first, the banner, and calls of an optimizer.

Contract platform 7.3 and 7.4; 7.8 for the optimizer calls of Hue, none of which this server carries out. There is one
namespace, compute and cluster for all interfaces, also for unknown ones: clients request them before they know the
interfaces.
"""

from fastapi import Response

from queryserver.api.answers import answer
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup, PublicCall, PublicRoute
from queryserver.api.schemas import generated as wire
from queryserver.errors.base import NotSupported

router = PathGroup()


@router.operation("list_context_namespaces_by_alias", "list_context_namespaces", "get_namespaces")
async def namespaces(call: Call, interface: str) -> Response:
    """The one namespace with the one compute, under the name in the path."""
    del call
    found = wire.Namespace(id="default", name="default", status="CREATED", computes=[_cluster()])
    return answer(wire.NamespacesResponse.model_validate({interface: [found], "status": 0}))


@router.operation("list_context_computes_by_alias", "list_context_computes")
async def computes(call: Call, interface: str) -> Response:
    """The one compute, under the name in the path."""
    del call
    found = wire.Compute(
        id="default", name="default", namespace="default", interface=interface, type="direct", options={}
    )
    return answer(wire.ComputesResponse.model_validate({interface: [found], "status": 0}))


@router.operation("list_context_clusters_by_alias", "list_context_clusters")
async def clusters(call: Call, interface: str) -> Response:
    """The one cluster, under the name in the path."""
    del call
    return answer(wire.ClustersResponse.model_validate({interface: [_cluster()], "status": 0}))


@router.operation("get_banners", kind=PublicRoute)
async def banners(call: PublicCall) -> Response:
    """What `desktop.custom.banner_top_html` says, in harmless tags. Without credentials."""
    return answer(wire.BannersResponse(system=None, configured=call.services.configuration.banner, status=0))


@router.operation("ask_optimizer")
async def optimizer(call: Call, name: str) -> Response:
    """Always refused: there is no optimizer, as `get_config` says."""
    del call
    raise NotSupported(f"The optimizer call {name} is not served.")


def _cluster() -> wire.Cluster:
    return wire.Cluster(id="default", name="default", type="direct", credentials={})
