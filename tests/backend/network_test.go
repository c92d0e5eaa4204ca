package backend

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/backend"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestWorkerReachesOnlyTheChosenDestinations: of those that the workspace allows, one is
// chosen; the Worker gets there and nowhere else, and both is told.
func TestWorkerReachesOnlyTheChosenDestinations(t *testing.T) {
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "let through\n") }))
	t.Cleanup(outside.Close)
	rule := strings.TrimPrefix(outside.URL, "http://")
	w := startWith(t, `networks = ["none", "allowlist"]`+"\n"+`network_rules = ["`+rule+`", "*.modules.example:443"]`, func(d *rig.Daemons) {
		rig.Configure(t, d.Root, backendUser, "[network]\nallow_special = true\n") // the server is on this host
		d.HelperEnv = append(d.HelperEnv, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
	})
	op := w.as(t, "demo", "operator")
	refused(t, op.do(t, "POST", ews, backend.CreateRequest{RepositoryID: "app", Network: "allowlist", NetworkRules: []string{"127.0.0.1:1"}}), backend.CodeNetworkRuleNotAllowed)
	ws := op.create(t, func(r *backend.CreateRequest) { r.Network, r.NetworkRules = "allowlist", []string{rule} })
	ev := ok[backend.Evidence](t, op.do(t, "GET", ews+"/"+ws.ID+"/evidence", nil), 200)
	if ev.Network != "allowlist" || len(ev.NetworkRules) != 1 || ev.NetworkRules[0] != rule {
		t.Errorf("evidence: %+v", ev)
	}
	wk := op.spawn(t, ws.ID, "get='curl -sS --noproxy , -x http://127.0.0.1:61080'; $get http://"+rule+"/; $get -o /dev/null -w '%{http_code}' http://other.example/")
	end := op.wait(t, wk.ID)
	if log := string(op.do(t, "GET", demo+"/workers/"+wk.ID+"/logs", nil).Body); log != "let through\n403" {
		t.Errorf("the Worker got %q", log)
	}
	if len(end.Notices) != 1 || end.Notices[0].Code != string(policy.CodeEgressRefused) {
		t.Errorf("notices: %+v", end.Notices)
	}
	eg := ok[backend.Egress](t, op.do(t, "GET", demo+"/workers/"+wk.ID+"/egress", nil), 200)
	if eg.Network != "allowlist" || eg.Allowed != 1 || eg.Refused != 1 || len(eg.Rules) != 1 || eg.Rules[0].Rule != rule || eg.Rules[0].BytesIn == 0 {
		t.Errorf("egress: %+v", eg)
	}
	if n := len(eg.Decisions); n != 2 || !eg.Decisions[0].Allowed || eg.Decisions[1].Host != "other.example" || eg.Decisions[1].Reason != "no_rule" {
		t.Errorf("decisions: %+v", eg.Decisions)
	}
	quiet := op.spawn(t, op.create(t, nil).ID, "true")
	op.wait(t, quiet.ID)
	if eg := ok[backend.Egress](t, op.do(t, "GET", demo+"/workers/"+quiet.ID+"/egress", nil), 200); eg.Network != "none" || len(eg.Rules)+len(eg.Decisions) != 0 {
		t.Errorf("without a network: %+v", eg)
	}
}
