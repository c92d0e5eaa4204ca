package backend

import (
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func withAllowlist(c *Config) {
	w := c.Workspaces["default"]
	w.Networks, w.NetworkRules = []string{"none", "allowlist"}, []string{"modules.example.org:443", "*.example.com:443"}
	c.Workspaces["default"] = w
}

// TestNetworkIsAnAllowlistOfConfiguredRules: what a Runtime is asked for, or why it is not.
func TestNetworkIsAnAllowlistOfConfiguredRules(t *testing.T) {
	const none, all = `[]`, `["modules.example.org:443","*.example.com:443"]`
	for name, tc := range map[string]struct {
		mode, rules string
		want        []string
		code        policy.Code
	}{
		"one":                   {"allowlist", `["modules.example.org:443"]`, []string{"modules.example.org:443"}, ""},
		"all":                   {"allowlist", all, []string{"modules.example.org:443", "*.example.com:443"}, ""},
		"another spelling":      {"allowlist", `["MODULES.example.ORG:443","modules.example.org:443"]`, []string{"modules.example.org:443"}, ""},
		"no rules":              {"allowlist", none, nil, CodeNetworkRulesRequired},
		"not configured":        {"allowlist", `["modules.example.org:443","evil.example:443"]`, nil, CodeNetworkRuleNotAllowed},
		"another port":          {"allowlist", `["modules.example.org:80"]`, nil, CodeNetworkRuleNotAllowed},
		"beneath a wildcard":    {"allowlist", `["a.example.com:443"]`, nil, CodeNetworkRuleNotAllowed},
		"a private range":       {"allowlist", `["modules.example.org:443@10.0.0.0/8"]`, nil, CodeNetworkRuleNotAllowed},
		"no rule at all":        {"allowlist", `["\u0000"]`, nil, CodeNetworkRuleNotAllowed},
		"rules of another mode": {"none", all, nil, policy.CodePolicyInvalid},
		"rules without a mode":  {"", all, nil, policy.CodePolicyInvalid},
		"a mode not allowed":    {"host", none, nil, CodeNetworkNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, withAllowlist)
			w := b.as("operator", "POST", "/api/w/default/execution-workspaces", `{"repository_id":"hello","network":"`+tc.mode+`","network_rules":`+tc.rules+`}`)
			if tc.code != "" {
				wantProblem(t, w, tc.code)
				return
			}
			if w.Code != 201 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			b.wantNetwork(t, policy.NetworkPolicy{Mode: policy.NetworkMode(tc.mode), Rules: tc.want})
		})
	}
	b := newBench(t, nil)
	wantProblem(t, b.as("operator", "POST", "/api/w/default/execution-workspaces", `{"repository_id":"hello","network":"allowlist","network_rules":["a.example:443"]}`), CodeNetworkNotAllowed)
}

func (b *bench) wantNetwork(t *testing.T, want policy.NetworkPolicy) {
	t.Helper()
	for _, call := range b.svc.Calls() {
		if req, ok := call.Arg.(runtime.CreateWorkspaceRequest); ok {
			if got := req.Sandbox.Network; got.Mode != want.Mode || !slices.Equal(got.Rules, want.Rules) {
				t.Errorf("the Runtime is asked for %+v, want %+v", got, want)
			}
			return
		}
	}
	t.Error("nothing was created")
}

// TestNetworkFormHasTheConfiguredRules as boxes, and sends those that are ticked.
func TestNetworkFormHasTheConfiguredRules(t *testing.T) {
	b := newBench(t, withAllowlist)
	b.person(t, "ada", "operator")
	cookie, csrf := b.login(t, "ada")
	page := b.do("GET", "/w/default/new", "", "Cookie", cookie, "Accept", "text/html").Body.String()
	for _, want := range []string{`name="network" value="none" checked`, `name="network" value="allowlist"`, `name="network_rules" value="*.example.com:443"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the form lacks %s", want)
		}
	}
	post := func(mode string, rules ...string) *httptest.ResponseRecorder {
		return b.do("POST", "/w/default/new", url.Values{"csrf": {csrf}, "repository_id": {"hello"}, "network": {mode}, "network_rules": rules}.Encode(),
			"Cookie", cookie, "Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html")
	}
	if w := post("allowlist"); w.Code != 422 || !strings.Contains(w.Body.String(), string(CodeNetworkRulesRequired)) {
		t.Errorf("none is ticked: %d %s", w.Code, w.Body)
	}
	w := post("allowlist", "*.example.com:443", "evil.example:443")
	if body := w.Body.String(); w.Code != 422 || !strings.Contains(body, string(CodeNetworkRuleNotAllowed)) || !strings.Contains(body, `value="*.example.com:443" checked`) {
		t.Errorf("another is sent: %d %s", w.Code, body)
	}
	if w := post("none", "*.example.com:443"); w.Code != 303 { // a box that the page hides
		t.Errorf("none: %d %s", w.Code, w.Body)
	}
	if err := b.settled(t); err != nil {
		t.Fatal(err)
	}
	b.wantNetwork(t, policy.NetworkPolicy{Mode: policy.NetworkNone})
}

// settled waits for the creations that are under way.
func (b *bench) settled(t *testing.T) error {
	t.Helper()
	c := &call{b: b.Backend, ctx: t.Context()}
	b.creations.mu.Lock()
	all := make([]*running, 0, len(b.creations.all))
	for _, r := range b.creations.all {
		all = append(all, r)
	}
	b.creations.mu.Unlock()
	for _, r := range all {
		if _, err := c.await(r); err != nil {
			return err
		}
	}
	return nil
}

func TestNetworkRulesAreChecked(t *testing.T) {
	const before, behind = "store = \"/b.db\"\n[runtimes.r]\nsocket = \"/run/r\"\n[workspaces.w]\nruntime = \"r\"\n", "\n[workspaces.w.repositories.a]\nsource = \"/src\"\n"
	for text, good := range map[string]bool{
		`networks = ["none", "allowlist"]` + "\n" + `network_rules = ["a.example:443", "A.example:443"]`: true,
		`networks = ["allowlist"]`:                                                                   false,
		`network_rules = ["a.example:443"]`:                                                          false,
		`networks = ["allowlist"]` + "\n" + `network_rules = ["a.example"]`:                          false,
		`networks = ["allowlist"]` + "\n" + `network_rules = ["` + strings.Repeat("a", 300) + `:1"]`: false,
		`networks = ["bridge"]`:                                                                      false,
	} {
		c, err := ParseConfig([]byte(before + text + behind))
		if (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
		if good && !slices.Equal(c.Workspaces["w"].NetworkRules, []string{"a.example:443"}) {
			t.Errorf("the rules are %q", c.Workspaces["w"].NetworkRules)
		}
	}
}

func TestRefusalsAreGathered(t *testing.T) {
	d := func(host string, allowed bool) EgressDecision {
		return EgressDecision{Host: host, Port: 443, Allowed: allowed, Reason: "no_rule"}
	}
	got := refusals(Egress{Decisions: []EgressDecision{d("a", false), d("b", true), d("c", false), d("a", false)}})
	if want := []refusal{{"a", 443, "no_rule", 2}, {"c", 443, "no_rule", 1}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestWordsForPeople(t *testing.T) {
	for got, want := range map[string]string{
		sentence("the path leads out"):                  "The path leads out.",
		sentence(`"nowhere" names nothing`):             `"nowhere" names nothing.`,
		sentence("relative_cwd is gone."):               "relative_cwd is gone.",
		sentence(""):                                    ".",
		policyText("keep_for:24h"):                      "keep it for 24 h",
		policyText("keep_for:1h30m"):                    "keep it for 1 h 30 min",
		policyText("remove_on_stop"):                    "remove it",
		policyText("made_up_later"):                     "made up later",
		count(1, "commit"):                              "1 commit",
		count(0, "commit"):                              "0 commits",
		changeText("??"):                                "untracked",
		changeText(".M"):                                "changed",
		changeText("D."):                                "deleted",
		commandLine([]string{"sh", "-c", "a\nb"}):       "sh -c 'a b'",
		commandLine([]string{strings.Repeat("x", 200)}): strings.Repeat("x", 120) + "…",
		networkTexts["allowlist"]:                       "only chosen destinations",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
