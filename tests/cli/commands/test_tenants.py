"""`callsheet tenants`."""

from tests.cli.conftest import Run


def test_tenants_are_created_changed_and_listed(run: Run) -> None:
    created = run("tenants", "set", "studio", "--weight", "3", role="operator")
    assert created.out == "studio is active, has weight 3, and any number of active jobs for each user.\n"
    changed = run("tenants", "set", "studio", "--status", "suspended", "--active-jobs-max", "1", role="operator")
    assert changed.out == "studio is suspended, has weight 3, and 1 active job for each user.\n"
    listed = run("tenants", role="operator").out
    assert listed == run("tenants", "list", role="operator").out
    (line,) = [line for line in listed.splitlines() if line.startswith("studio")]
    assert line.split()[:4] == ["studio", "suspended", "3", "1"]
    found = {one["id"]: one["weight"] for one in run("tenants", "--json", role="operator").json["tenants"]}
    assert found["studio"] == 3
    assert run("tenants", "set", "studio", "--json", role="operator").json["status"] == "suspended"
    assert run("tenants").code == 1, "only an operator may list tenants"


def test_show_prints_the_storage_usage_of_a_tenant_with_its_limits(run: Run) -> None:
    run("tenants", "set", "gallery", "--storage-bytes-max", "5000", role="operator")
    printed = run("tenants", "show", "gallery", role="operator").out
    assert "gallery is active and has weight 1." in printed
    assert [line.split() for line in printed.splitlines()[-3:]] == [
        ["stored", "0"], ["pending", "0", str(256 * 1024**3)], ["together", "0", "5000"],
    ]  # fmt: skip
    details = run("tenants", "show", "gallery", "--json", role="operator").json
    assert (details["tenant"]["storage_bytes_max"], details["storage"]["storage_bytes_max"]) == (5_000, 5_000)
    run("tenants", "set", "gallery", "--no-storage-bytes-max", role="operator")
    assert run("tenants", "show", "gallery", "--json", role="operator").json["tenant"]["storage_bytes_max"] is None
    assert run("tenants", "show", "missing", role="operator").code == 1
