package egress

import (
	"net/netip"
	"slices"

	"yoi.dev/yoi-runtime/policy"
)

// ProxyAddr is where the Worker finds the proxy: HTTP and SOCKS5 on one port, which
// lies above the ephemeral ones, so that no server of the Worker's gets it by chance.
var ProxyAddr = netip.MustParseAddrPort("127.0.0.1:61080")

// nameServer answers for wildcard rules in transparent mode.
var nameServer = netip.MustParseAddrPort("127.18.255.53:53")

// What a socket serves.
const (
	SocketProxy = "proxy" // HTTP and SOCKS5
	SocketRule  = "rule"  // connections to one rule, by transparent mode
	SocketDNS   = "dns"   // names of transparent mode
)

// Socket is a listening socket in the Worker's network.
type Socket struct {
	Kind string         `json:"kind"`
	Addr netip.AddrPort `json:"addr"`
	UDP  bool           `json:"udp,omitempty"`
	// Rule is the index of a SocketRule's rule.
	Rule int `json:"rule,omitempty"`
}

// Config is what the program is told, as JSON in a sealed memory file. The policy is
// normalized and valid.
type Config struct {
	Network policy.NetworkPolicy `json:"network"`
	Sockets []Socket             `json:"sockets"`
	// Resolvers are ADDRESS:PORT of name servers in place of the host's own.
	Resolvers []string `json:"resolvers,omitempty"`
}

// MaxSockets is what one message can carry beside the other descriptors.
const MaxSockets = 240

// Sockets are those that a policy needs.
func Sockets(p policy.NetworkPolicy) ([]Socket, error) {
	out := []Socket{{Kind: SocketProxy, Addr: ProxyAddr}}
	if !p.Transparent {
		return out, nil
	}
	rules, err := p.ParsedRules()
	if err != nil {
		return nil, err
	}
	places := Places(rules)
	dns := false
	for i, r := range rules {
		if HostOf(r) == "" {
			continue // for an address, a program that knows of no proxy would need a route
		}
		dns = dns || r.Wildcard
		out = append(out, Socket{Kind: SocketRule, Addr: netip.AddrPortFrom(places[HostOf(r)], r.Port), Rule: i})
	}
	if dns {
		out = append(out, Socket{Kind: SocketDNS, Addr: nameServer, UDP: true}, Socket{Kind: SocketDNS, Addr: nameServer})
	}
	if len(out) > MaxSockets {
		return nil, policy.Errorf(policy.CodePolicyInvalid, "egress.sockets", "a transparent network has at most %d rules", MaxSockets-3)
	}
	return out, nil
}

// HostOf is a rule's host as the rule has it, "" for an address, and for the name
// that means the sandbox itself inside it.
func HostOf(r policy.NetworkRule) string {
	switch {
	case r.Wildcard:
		return "*." + r.Name
	case r.Name == "localhost":
		return ""
	}
	return r.Name
}

// Places gives each host of the rules a loopback address of its own, below
// 127.18.0.0/16: what transparent mode has the names lead to.
func Places(rules []policy.NetworkRule) map[string]netip.Addr {
	places := make(map[string]netip.Addr)
	for _, r := range rules {
		if h := HostOf(r); h != "" && !places[h].IsValid() {
			n := len(places) + 1
			places[h] = netip.AddrFrom4([4]byte{127, 18, byte(n >> 8), byte(n)})
		}
	}
	return places
}

// Hosts are the lines of the sandbox's /etc/hosts for transparent mode, and whether
// there is a name server for names that a wildcard covers.
func Hosts(p policy.NetworkPolicy) (lines string, server netip.Addr) {
	rules, err := p.ParsedRules()
	if err != nil || !p.Transparent {
		return "", netip.Addr{}
	}
	places := Places(rules)
	names := make([]string, 0, len(places))
	for h := range places {
		names = append(names, h)
	}
	slices.Sort(names)
	for _, h := range names {
		if h[0] == '*' {
			server = nameServer.Addr()
			continue
		}
		lines += places[h].String() + " " + h + "\n"
	}
	return lines, server
}

// Environment is what has programs use the proxy. Both spellings, because curl reads
// only the lower-case http_proxy, and others only upper-case ones. ALL_PROXY is the
// HTTP one too: a SOCKS URL there breaks Python programs without a SOCKS library.
func Environment() map[string]string {
	url := "http://" + ProxyAddr.String()
	const local = "localhost,127.0.0.1,127.0.0.0/8,::1,worker"
	return map[string]string{
		"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": local,
		"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": local,
		"npm_config_proxy": url, "npm_config_https_proxy": url, "npm_config_noproxy": local,
		"YARN_HTTP_PROXY": url, "YARN_HTTPS_PROXY": url,
		"NODE_USE_ENV_PROXY": "1", // Node's own fetch and http ignore the others without it
		"YOI_SOCKS_PROXY":    "socks5h://" + ProxyAddr.String(),
	}
}
