"""Namespaces, computes and clusters, which Hue clients ask for first, and the banner (Contract platform 7.3, 7.4).

There is one of each, whatever the interface; an unknown one has them too, for clients ask before they know.
"""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.dependencies import ServicesOf
from queryserver.api.platform_calls import PlatformCall, PlatformRoute
from queryserver.schemas import generated as wire

_FAILURES = failures(404)

contexts = APIRouter(tags=["context"], route_class=PlatformRoute)
public = APIRouter(prefix="/api/v1", tags=["context"])


@contexts.get(
    "/api/v1/get_namespaces/{interface:interface}",
    response_model=wire.NamespacesResponse,
    responses=_FAILURES,
    summary="Namespaces of a data source",
)
@contexts.get(
    "/api/v1/context/namespaces/{interface:interface}",
    response_model=wire.NamespacesResponse,
    responses=_FAILURES,
    summary="Namespaces of a data source",
)
@contexts.get(
    "/desktop/api2/context/namespaces/{interface:interface}",
    response_model=wire.NamespacesResponse,
    responses=_FAILURES,
    summary="Namespaces of a data source, for Hue clients",
)
async def namespaces(call: PlatformCall, interface: str) -> Response:
    """The one namespace with the one compute, under the name in the path."""
    del call
    found = wire.Namespace(id="default", name="default", status="CREATED", computes=[_cluster()])
    return answer(wire.NamespacesResponse.model_validate({interface: [found], "status": 0}))


@contexts.get(
    "/api/v1/context/computes/{interface:interface}",
    response_model=wire.ComputesResponse,
    responses=_FAILURES,
    summary="Computes of a data source",
)
@contexts.get(
    "/desktop/api2/context/computes/{interface:interface}",
    response_model=wire.ComputesResponse,
    responses=_FAILURES,
    summary="Computes of a data source, for Hue clients",
)
async def computes(call: PlatformCall, interface: str) -> Response:
    """The one compute, under the name in the path."""
    del call
    found = wire.Compute(
        id="default", name="default", namespace="default", interface=interface, type="direct", options={}
    )
    return answer(wire.ComputesResponse.model_validate({interface: [found], "status": 0}))


@contexts.get(
    "/api/v1/context/clusters/{interface:interface}",
    response_model=wire.ClustersResponse,
    responses=_FAILURES,
    summary="Clusters of a data source",
)
@contexts.get(
    "/desktop/api2/context/clusters/{interface:interface}",
    response_model=wire.ClustersResponse,
    responses=_FAILURES,
    summary="Clusters of a data source, for Hue clients",
)
async def clusters(call: PlatformCall, interface: str) -> Response:
    """The one cluster, under the name in the path."""
    del call
    return answer(wire.ClustersResponse.model_validate({interface: [_cluster()], "status": 0}))


@public.get(
    "/banners",
    response_model=wire.BannersResponse,
    openapi_extra={"security": []},
    summary="The banner of this installation",
)
async def banners(services: ServicesOf) -> Response:
    """What `desktop.custom.banner_top_html` says, in harmless tags. Without credentials."""
    return answer(wire.BannersResponse(system=None, configured=services.configuration.banner, status=0))


def _cluster() -> wire.Cluster:
    return wire.Cluster(id="default", name="default", type="direct", credentials={})


routes = [*contexts.routes, *public.routes]
