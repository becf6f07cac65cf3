"""The files in `deploy/` match the schemas of the programs that read them, the server's settings, and each other."""

import configparser
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.deploy.proxies import DEPLOY

from queryserver.platform.settings.loader import read_settings
from queryserver.platform.settings.sections import LocalResults
from queryserver.platform.settings.tree import Settings

DOCKERFILE = (DEPLOY.parent / "Dockerfile").read_text()
SECRET = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
# REST_S is the duration of the cleanup after the grace period (docs/operations/shutdown.md). MARGIN_S is a margin
# before the process is killed.
REST_S, MARGIN_S = 15, 5
VERSIONS = ("1.33", kubernetes_validate.latest_version())


def manifests() -> list[dict[str, Any]]:
    """Return all Kubernetes objects in the manifests."""
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [one for file in files for one in yaml.load_all(file.read_text(), yaml.CSafeLoader)]


def manifest(kind: str, name: str = "") -> dict[str, Any]:
    [found] = [one for one in manifests() if one["kind"] == kind and name in {"", one["metadata"]["name"]}]
    return found


def pod(name: str = "queryserver") -> dict[str, Any]:
    return manifest("Deployment", name)["spec"]["template"]["spec"]


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def settings(environment: Mapping[str, str], directory: Path, file: Path | None = None) -> Settings:
    """Return the settings that a server reads from this environment and settings file, with test values for secrets.

    Fails with the server's messages if the settings are invalid.
    """
    addresses = {
        "DATABASE__URL_FILE": f"postgresql://queryserver:{SECRET}@database.example.org/queryserver",
        "BROKER_URL_FILE": f"redis://:{SECRET}@broker.example.org/0",
    }
    given = dict(environment)
    for name in (one for one in environment if one.endswith("_FILE")):
        secret = directory / name
        secret.write_text(next((text for end, text in addresses.items() if name.endswith(end)), SECRET))
        given[name] = str(secret)
    reading = read_settings(file, given)
    assert reading.problems == []
    return reading.settings


def stop_s(settings: Settings) -> int:
    """Return the maximum duration of a server's shutdown, plus the margin."""
    return settings.desktop.shutdown_delay_s + settings.desktop.shutdown_grace_s + REST_S + MARGIN_S


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_match_kubernetes_schema(version: str):
    for one in manifests():
        kubernetes_validate.validate(one, version, strict=True)


def test_schema_is_strict():
    wrong = manifest("Deployment", "queryserver")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_pod_has_the_settings_of_its_files(tmp_path: Path):
    [container] = pod()["containers"]
    environment = {
        one["name"]: one.get("value", "10.244.0.9").replace("$(POD_IP)", "10.244.0.9")
        for one in container["env"]
        if one["name"].startswith("QUERYSERVER")
    }
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    # The image reads its settings file from this directory.
    assert mounts["/etc/queryserver"] == "settings"
    keys = {Path(value).name for name, value in environment.items() if name.endswith("_FILE")}
    assert keys | {"broker-password"} == set(manifest("Secret")["stringData"])
    [(name, text)] = manifest("ConfigMap")["data"].items()
    file = tmp_path / name
    file.write_text(text)
    read = settings(environment, tmp_path, file)
    assert read.desktop.allowed_hosts == (manifest("Ingress")["spec"]["rules"][0]["host"], "10.244.0.9")
    assert pod()["terminationGracePeriodSeconds"] == stop_s(read)
    readiness = container["readinessProbe"]
    until_unready_s = readiness["failureThreshold"] * (readiness["periodSeconds"] + readiness["timeoutSeconds"])
    assert read.desktop.shutdown_delay_s >= until_unready_s
    results = read.desktop.task_server.result_file_storage
    assert isinstance(results, LocalResults)
    for place in (Path(results.location or ""), read.importer.upload_dir, read.filebrowser.local_root):
        assert place is not None
        assert mounts[str(place.parent)] == "shared"
    # The server itself creates the upload and results directories.
    [migrate] = pod()["initContainers"]
    assert migrate["command"][2] == f"mkdir -p {read.filebrowser.local_root} && exec queryserver migrate"
    assert container["ports"][0]["containerPort"] == read.desktop.http_port


def test_pods_have_no_unneeded_rights():
    assert pod()["automountServiceAccountToken"] is False
    assert pod("queryserver-broker")["automountServiceAccountToken"] is False
    assert pod("queryserver-broker")["securityContext"]["runAsNonRoot"] is True
    security = pod()["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in DOCKERFILE
    for container in (*pod()["containers"], *pod()["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert {"/tmp", "/var/lib/queryserver"} <= mounts  # noqa: S108 what the image writes to
        assert "memory" in container["resources"]["limits"]


def test_update_stops_no_server_before_the_next_is_ready():
    deployment = manifest("Deployment", "queryserver")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    [container] = pod()["containers"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    alive, ready = "/desktop/debug/is_alive", "/desktop/debug/is_ready"
    assert paths == {"startup": alive, "liveness": alive, "readiness": ready}
    labels = deployment["template"]["metadata"]["labels"]
    selected = [
        deployment["selector"]["matchLabels"],
        pod()["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(manifest("Service", name)["spec"]["selector"] for name in ("queryserver", "queryserver-pods")),
        manifest("NetworkPolicy", "queryserver")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(one == labels for one in selected)


@pytest.mark.parametrize("role", ["worker", "beat"])
def test_workers_and_beats_share_the_servers_configuration(role: str, tmp_path: Path):
    [server], [container] = pod()["containers"], pod(f"queryserver-{role}")["containers"]
    assert container["args"] == [role]
    assert container["image"] == server["image"]
    of_callers = {"POD_IP", "QUERYSERVER__DESKTOP__ALLOWED_HOSTS"}
    assert container["env"] == [one for one in server["env"] if one["name"] not in of_callers]
    for key in ("volumeMounts", "securityContext"):
        assert container[key] == server[key], key
    for key in ("volumes", "securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert pod(f"queryserver-{role}")[key] == pod()[key], key
    for kind in ("startup", "liveness"):
        assert container[f"{kind}Probe"]["httpGet"] == {"path": "/desktop/debug/is_alive", "port": "metrics"}
    # The image sets the host of the metrics port to the value of `http_host`, so both ports listen on all interfaces.
    assert next(_quoted("TASK_SERVER__METRICS_HOST")) == next(_quoted("HTTP_HOST")) == "0.0.0.0"
    [(_, text)] = manifest("ConfigMap")["data"].items()
    file = tmp_path / "queryserver.toml"
    file.write_text(text)
    tasks = read_settings(file, {}).settings.desktop.task_server
    assert container["ports"] == [{"name": "metrics", "containerPort": tasks.metrics_port}]
    assert (tasks.enabled, tasks.beat_enabled) == (True, True)


@pytest.mark.parametrize("role", ["worker", "beat"])
def test_compose_workers_and_beats_are_servers_with_another_command(role: str):
    services = compose()["services"]
    given, server = services[role], services["queryserver-1"]
    assert given["command"] == [role]
    assert given["healthcheck"]["test"][:3] == ["CMD", "queryserver", "is_worker_alive"]
    for key in (
        "environment",
        "volumes",
        "secrets",
        "stop_grace_period",
        "depends_on",
        "read_only",
        "cap_drop",
        "user",
    ):
        assert given[key] == server[key], key


def test_broker_keeps_queued_messages_and_requires_password():
    [container] = pod("queryserver-broker")["containers"]
    for command in (container["command"][2], compose()["services"]["broker"]["command"][2]):
        assert "--maxmemory-policy noeviction" in command
        assert "--requirepass" in command
    service = manifest("Service", "queryserver-broker")
    labels = manifest("Deployment", "queryserver-broker")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert manifest("NetworkPolicy", "queryserver-broker")["spec"]["podSelector"]["matchLabels"] == labels
    url = manifest("Secret")["stringData"]["broker-url"]
    assert f"@{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/" in url
    assert f"${{VALKEY_IMAGE:-{container['image']}}}" == compose()["services"]["broker"]["image"]


def test_each_image_can_be_pinned_without_edits_as_documented():
    guide = (DEPLOY / "README.md").read_text()
    images = {service["image"] for service in compose()["services"].values()}
    variables = {found[1] for image in images if (found := re.fullmatch(r"\$\{([A-Z]+_IMAGE):-[^}]+\}", image))}
    assert len(variables) == len(images)
    assert [name for name in variables if f"`{name}`" not in guide] == []
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}"] * 2
    assert "--build-arg BASE=" in guide


def test_ingress_leads_to_servers_and_not_to_metrics():
    port = manifest("Service", "queryserver")["spec"]["ports"][0]
    assert port["targetPort"] == pod()["containers"][0]["ports"][0]["name"]
    paths = manifest("Ingress")["spec"]["rules"][0]["http"]["paths"]
    target = {"service": {"name": "queryserver", "port": {"name": port["name"]}}}
    assert all(one["backend"] == target for one in paths)
    assert {(one["path"], one["pathType"]) for one in paths} == {
        ("/api", "Prefix"),
        ("/notebook/api", "Prefix"),
        ("/mcp", "Prefix"),
        ("/.well-known/oauth-protected-resource", "Prefix"),
        ("/desktop", "Prefix"),
        ("/", "Exact"),
    }


def test_prometheus_scrapes_each_pod_of_servers_workers_and_beats():
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "kubernetes.yml").read_text())["scrape_configs"]
    read = {name.split(".")[0]: source["port"] for source in job["dns_sd_configs"] for name in source["names"]}
    services = {"queryserver-pods": "server", "queryserver-workers": "worker", "queryserver-beats": "beat"}
    assert set(read) == set(services)
    for name, component in services.items():
        spec = manifest("Service", name)["spec"]
        deployment = "queryserver" if component == "server" else f"queryserver-{component}"
        [port] = pod(deployment)["containers"][0]["ports"]
        assert read[name] == spec["ports"][0]["port"] == port["containerPort"]
        assert spec["ports"][0]["targetPort"] == port["name"]
        assert spec["selector"] == manifest("Deployment", deployment)["spec"]["template"]["metadata"]["labels"]
        # The service must be headless, because otherwise its name would resolve to a single address for all pods.
        assert spec["clusterIP"] == "None"
    policy = manifest("NetworkPolicy", "queryserver-metrics")["spec"]
    assert policy["podSelector"]["matchExpressions"][0]["values"] == ["worker", "beat"]
    assert policy["ingress"][0]["ports"] == [{"port": "metrics"}]


def test_prometheus_scrapes_each_process_of_compose_file(tmp_path: Path):
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    [listed], [found] = job["static_configs"], job["dns_sd_configs"]
    read = {name: settings(service["environment"], tmp_path).desktop for name, service in servers()}
    assert listed["targets"] == [f"{name}:{desktop.http_port}" for name, desktop in read.items()]
    for name, desktop in read.items():
        assert name in desktop.allowed_hosts
        assert desktop.metrics.token.get_secret_value()
    assert found["names"] == ["worker", "beat"]
    for name in found["names"]:
        tasks = settings(compose()["services"][name]["environment"], tmp_path).desktop.task_server
        assert found["port"] == tasks.metrics_port


def servers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and definition of each queryserver service in the compose file."""
    for name, service in compose()["services"].items():
        if name.startswith("queryserver-"):
            yield name, service


def test_compose_servers_have_their_required_settings(tmp_path: Path):
    services, whole = compose()["services"], compose()
    assert "version" not in whole
    proxy = services["proxy"]["networks"]["internal"]["ipv4_address"]
    addresses = {proxy}
    for name, service in servers():
        read = settings(service["environment"], tmp_path)
        assert [str(network) for network in read.desktop.trusted_proxies] == [f"{proxy}/32"]
        assert service["stop_grace_period"] == f"{stop_s(read)}s"
        assert f"USER {service['user']}\n" in DOCKERFILE
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["healthcheck"]["test"] == ["CMD", "queryserver", "health", "--ready"]
        addresses.add(service["networks"]["internal"]["ipv4_address"])
        assert f"server {name}:{read.desktop.http_port} " in (DEPLOY / "nginx" / "nginx.conf").read_text()
        assert f"server_name {read.desktop.allowed_hosts[0]};" in (DEPLOY / "nginx" / "nginx.conf").read_text()
        files = {Path(value).name for key, value in service["environment"].items() if key.endswith("_FILE")}
        assert files == set(service["secrets"]) == set(whole["secrets"]) - {"broker-password"}
        made = services["migrate"]["entrypoint"][2]
        assert made == f"mkdir -p {read.filebrowser.local_root} && exec queryserver migrate"
        # All queryserver services share one volume and keep no state outside it.
        state = [volume for volume in service["volumes"] if volume.startswith("state:")]
        assert state == [f"state:{next(_quoted('DATA_DIR'))}"]
    assert len(addresses) == 3
    [certificate] = [volume for volume in services["proxy"]["volumes"] if volume.startswith("./tls:")]
    assert f"ssl_certificate {certificate.split(':')[1]}/tls.crt;" in (DEPLOY / "nginx" / "nginx.conf").read_text()


def _quoted(name: str) -> Iterator[str]:
    for line in DOCKERFILE.splitlines():
        if f"QUERYSERVER__DESKTOP__{name}=" in line:
            yield line.partition("=")[2].rstrip(" \\")


def steps() -> str:
    """Return the Markdown source of the guide to setting up a fleet."""
    return (DEPLOY.parent / "docs" / "operations" / "fleet.md").read_text()


def test_guide_settings_are_valid_for_a_fleet_and_match_systemd_unit(tmp_path: Path):
    [toml] = re.findall(r"```toml\n(.*?)```", steps(), re.DOTALL)
    file = tmp_path / "queryserver.toml"
    file.write_text(toml)
    environment = dict(re.findall(r"^(QUERYSERVER__\w+)=(/etc/queryserver/\S+)$", steps(), re.MULTILINE))
    read = settings(environment, tmp_path, file)
    assert read.desktop.database.url is not None
    assert read.desktop.task_server.enabled
    assert read.desktop.task_server.beat_enabled
    unit = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "queryserver@.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) == stop_s(read)
    assert service["ExecStart"] == "/opt/queryserver/bin/queryserver %i"
    assert "python3 -m venv /opt/queryserver " in steps()
    assert Path("/var/lib") / service["StateDirectory"] == read.desktop.data_dir
    assert f"cat >{Path(service['EnvironmentFile']).name} <<" in steps()
    results = read.desktop.task_server.result_file_storage
    assert isinstance(results, LocalResults)
    shared = service["ReadWritePaths"].lstrip("-")
    databases = read.desktop.connector_policy.local_database_dir
    for place in (results.location, read.importer.upload_dir, read.filebrowser.local_root, databases):
        assert str(place).startswith(f"{shared}/")
        assert f"{place}" in steps().partition("```sh\ninstall -d -o queryserver")[2].partition("```")[0]


def test_guide_commands_create_the_secrets_that_files_name():
    made = steps()
    for name in compose()["secrets"]:
        assert f">secrets/{name}" in made
    for name in manifest("Secret")["stringData"]:
        assert f"--from-file={name}" in made
    certificate = manifest("Ingress")["spec"]["tls"][0]["secretName"]
    assert f"kubectl create secret tls {certificate} " in made
    broker = manifest("Service", "queryserver-broker")["metadata"]["name"]
    assert f"@{broker}:6379/0" in made


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "queryserver.json").read_text())


def test_dashboard_contains_only_fields_known_to_grafana_models():
    register_default_plugins()
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert list(_lost(dashboard(), written)) == []


def _lost(given: Any, written: Any, place: str = "") -> Iterator[str]:
    """Yield the paths of all fields that `written` lacks or changes. The models drop fields that they do not define."""
    if isinstance(given, dict):
        for key, value in given.items():
            if value is not None:
                yield from _lost(value, written.get(key) if isinstance(written, dict) else None, f"{place}.{key}")
    elif isinstance(given, list):
        if not isinstance(written, list) or len(given) != len(written):
            yield place
        else:
            for number, (one, other) in enumerate(zip(given, written, strict=True)):
                yield from _lost(one, other, f"{place}[{number}]")
    elif given != written:
        yield place


def test_dashboard_panels_do_not_overlap_and_use_its_variables():
    panels, taken = dashboard()["panels"], set[tuple[int, int]]()
    assert len({one["id"] for one in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert [one["name"] for one in dashboard()["templating"]["list"]] == ["datasource", "instance"]
