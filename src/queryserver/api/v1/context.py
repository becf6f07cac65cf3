"""Calls for contexts (namespaces, computes, clusters), the banner, and Hue's optimizer.

Contract platform 7.3, 7.4 and 7.8. Every interface, even an unknown one, has the same namespace, compute and cluster,
because Hue clients request these before they know the interfaces. Optimizer calls are not supported.
"""

from fastapi import Response

from queryserver.api.dependencies import AnyUser, ClientDep, NoFields, QueryUser
from queryserver.api.responses import json_response
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.service_dependencies import BannerDep
from queryserver.errors.base import NotSupported

router = PathGroup("context", prefix="")
optimizer = PathGroup("optimizer")


@router.get("/api/v1/context/namespaces/{interface:interface}", response_model=wire.NamespacesResponse)
@router.get(
    "/desktop/api2/context/namespaces/{interface:interface}",
    name="list_context_namespaces_by_alias",
    response_model=wire.NamespacesResponse,
)
@router.get(
    "/api/v1/get_namespaces/{interface:interface}", name="get_namespaces", response_model=wire.NamespacesResponse
)
async def list_context_namespaces(interface: str, _user: AnyUser, _: NoFields) -> Response:
    """Return the only namespace and its compute. The key in the response is the interface in the path."""
    found = wire.Namespace(id="default", name="default", status="CREATED", computes=[_cluster()])
    return json_response(wire.NamespacesResponse.model_validate({interface: [found], "status": 0}))


@router.get("/api/v1/context/computes/{interface:interface}", response_model=wire.ComputesResponse)
@router.get(
    "/desktop/api2/context/computes/{interface:interface}",
    name="list_context_computes_by_alias",
    response_model=wire.ComputesResponse,
)
async def list_context_computes(interface: str, _user: AnyUser, _: NoFields) -> Response:
    """Return the only compute. The key in the response is the interface in the path."""
    found = wire.Compute(
        id="default", name="default", namespace="default", interface=interface, type="direct", options={}
    )
    return json_response(wire.ComputesResponse.model_validate({interface: [found], "status": 0}))


@router.get("/api/v1/context/clusters/{interface:interface}", response_model=wire.ClustersResponse)
@router.get(
    "/desktop/api2/context/clusters/{interface:interface}",
    name="list_context_clusters_by_alias",
    response_model=wire.ClustersResponse,
)
async def list_context_clusters(interface: str, _user: AnyUser, _: NoFields) -> Response:
    """Return the only cluster. The key in the response is the interface in the path."""
    return json_response(wire.ClustersResponse.model_validate({interface: [_cluster()], "status": 0}))


@router.get("/api/v1/banners", response_model=wire.BannersResponse)
async def get_banners(_client: ClientDep, banner: BannerDep) -> Response:
    """Return the setting `desktop.custom.banner_top_html` with only harmless HTML tags. Needs no credentials."""
    return json_response(wire.BannersResponse(system=None, configured=banner, status=0))


@optimizer.post("/optimizer/{name:optimizer}", status_code=501, responses=failures(501))
async def ask_optimizer(name: str, _user: QueryUser, _: NoFields) -> Response:
    """Return 501, because this server has no optimizer."""
    raise NotSupported(f"The optimizer call {name} is not served.")


def _cluster() -> wire.Cluster:
    return wire.Cluster(id="default", name="default", type="direct", credentials={})
