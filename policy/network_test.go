package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseNetworkRule(t *testing.T) {
	for in, want := range map[string]string{
		"modules.example.org:443":                  "",
		"*.example.com:443":                        "",
		"db.example.net:5432":                      "",
		"Example.ORG:443":                          "example.org:443",
		"localhost:8080@127.0.0.1":                 "localhost:8080@127.0.0.1/32",
		"db.corp.example:5432@10.1.2.3/16,fd00::1": "db.corp.example:5432@10.1.0.0/16,fd00::1/128",
		"192.0.2.1:80":                             "",
		"[2001:db8::1]:443":                        "",
		"[2001:DB8:0::1]:443":                      "[2001:db8::1]:443",
		"bücher.example:443":                       "xn--bcher-kva.example:443",
		"BÜCHER.example:443":                       "xn--bcher-kva.example:443",
		"xn--bcher-kva.example:443":                "",
		"例え.jp:443":                                "xn--r8jz45g.jp:443",
		"_srv.example.org:443":                     "",
	} {
		if want == "" {
			want = in
		}
		r, err := ParseNetworkRule(in)
		if err != nil || r.String() != want {
			t.Errorf("%q: %q, %v", in, r, err)
			continue
		}
		if again, err := ParseNetworkRule(r.String()); err != nil || again.String() != r.String() {
			t.Errorf("%q: its own spelling is %q, %v", in, again, err)
		}
	}
	for _, in := range []string{
		"", ":443", "example.org", "example.org:", "example.org:0", "example.org:65536", "example.org:+1", "example.org:044", "example.org:443x", "example.org: 443",
		"http://example.org:443", "user@example.org:443", "example.org:443/path", "example.org.:443", "-a.example:443", "a-.example:443", "a..b:1", ".a:1",
		"*:443", "*.com:443", "*.*.example.org:443", "a.*.example.org:443", "*example.org:443", "?.example.org:443",
		// addresses in the forms that some resolver takes
		"2130706433:80", "017700000001:80", "0x7f000001:80", "0x7f.1:80", "127.1:80", "127.0.1:80", "1.2.3.4.5:80", "010.0.0.1:80", "0177.0.0.1:80", "192.0.2.0x1:80", "256.0.0.1:80",
		"::1:80", "[::1%lo]:80", "[::ffff:127.0.0.1]:80", "[127.0.0.1]:80", "[::1:80", "[]:80", "fe80::1%eth0:80",
		"example.org:443@", "example.org:443@10.0.0.0/33", "example.org:443@evil", "192.0.2.1:80@10.0.0.0/8", "example.org:443@::ffff:10.0.0.0/104",
		// names that look like others: a Cyrillic a among Latin letters, all Cyrillic, a fraction slash, a dot that is none
		"exаmple.org:443", "аррӏе.example:443", "xn--80ak6aa92e.example:443", "example.org⁄evil.test:443", "exam\u200bple.org:443", "ехаmple.org:443",
		"xn--a:443", "xn--zzzzzz--9:443", "a\x00b.example:443", "a\nb.example:443", strings.Repeat("a", 64) + ".example:443", strings.Repeat("a.", 130) + "b:443", strings.Repeat("x", 2000),
	} {
		if r, err := ParseNetworkRule(in); err == nil || !errors.Is(err, CodeNetworkRuleInvalid) {
			t.Errorf("%q: %q, %v", in, r, err)
		}
	}
}

func TestNetworkRuleMatches(t *testing.T) {
	rule := func(s string) NetworkRule {
		r, err := ParseNetworkRule(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	exact, wild := rule("example.org:443"), rule("*.example.org:443")
	for name, want := range map[string][2]bool{
		"example.org": {true, false}, "a.example.org": {false, true}, "a.b.example.org": {false, true},
		"aexample.org": {}, "example.org.evil.test": {}, "evil.test": {}, "org": {}, "": {},
	} {
		if got := [2]bool{exact.MatchesName(name), wild.MatchesName(name)}; got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

func TestSpecialAddress(t *testing.T) {
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.1.1", "223.255.255.255",
		"2606:4700::1", "2a00:1450::1", "64:ff9b::808:808", "2002:808:808::1"} {
		if why := SpecialAddress(netip.MustParseAddr(a)); why != "" {
			t.Errorf("%s is %s", a, why)
		}
	}
	for _, a := range []string{"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.2.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1",
		"64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1"} {
		if SpecialAddress(netip.MustParseAddr(a)) == "" {
			t.Errorf("%s is public", a)
		}
	}
}

func TestNetworkPolicy(t *testing.T) {
	p := SandboxPolicy{Network: NetworkPolicy{Rules: []string{"B.example:443", "a.example:443", "b.example:443"}}}.Normalize()
	if p.Network.Mode != NetworkAllowlist || !slices.Equal(p.Network.Rules, []string{"a.example:443", "b.example:443"}) {
		t.Errorf("%+v", p.Network)
	}
	for _, bad := range []NetworkPolicy{
		{Mode: NetworkNone, Rules: []string{"a.example:443"}}, {Mode: NetworkHost, Transparent: true}, {Mode: "some"},
		{Mode: NetworkAllowlist, Rules: []string{"x"}}, {Mode: NetworkAllowlist, MaxConnections: -1}, {Mode: NetworkAllowlist, MaxConnections: 1 << 20},
		{Mode: NetworkAllowlist, IdleTimeout: 1}, {Mode: NetworkAllowlist, MaxBytes: 1 << 63}, {Mode: NetworkAllowlist, Rules: slices.Repeat([]string{"a.example:443"}, 10000), MaxConnections: -1},
	} {
		if err := (SandboxPolicy{Network: bad}).Validate(); err == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	if err := (SandboxPolicy{Network: NetworkPolicy{Mode: NetworkAllowlist}}).Validate(); err != nil {
		t.Errorf("a list of nothing: %v", err)
	}
}

func FuzzParseNetworkRule(f *testing.F) {
	for _, s := range []string{"example.org:443", "*.example.com:443", "[2001:db8::1]:1", "1.2.3.4:5", "bücher.example:443@10.0.0.0/8", "xn--bcher-kva.example:1", "аррӏе.com:443"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseNetworkRule(s)
		if err != nil {
			return
		}
		again, err := ParseNetworkRule(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q: its spelling %q is read as %q, %v", s, r, again, err)
		}
		if r.Name != "" {
			if name, ok := CanonicalName(r.Name); !ok || name != r.Name {
				t.Fatalf("%q: the name %q", s, r.Name)
			}
			if a, err := netip.ParseAddr(r.Name); err == nil {
				t.Fatalf("%q: the name %q is the address %s", s, r.Name, a)
			}
		}
	})
}
