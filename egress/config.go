package egress

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

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
	// SocketSecret serves plain HTTP for one host, to which requests go on over TLS
	// with the secret's header.
	SocketSecret = "secret"
)

// Socket is a listening socket in the Worker's network.
type Socket struct {
	Kind string         `json:"kind"`
	Addr netip.AddrPort `json:"addr"`
	UDP  bool           `json:"udp,omitempty"`
	// Rule is the index of a SocketRule's rule, Endpoint of a SocketSecret's endpoint.
	Rule     int `json:"rule,omitempty"`
	Endpoint int `json:"endpoint,omitempty"`
}

// Config is what the program is told, as JSON in a sealed memory file. The policy is
// normalized and valid.
type Config struct {
	Network policy.NetworkPolicy `json:"network"`
	Sockets []Socket             `json:"sockets"`
	// Resolvers are ADDRESS:PORT of name servers in place of the host's own.
	Resolvers []string `json:"resolvers,omitempty"`
	// Secrets are the headers of the endpoints; their values come beside.
	Secrets []policy.Secret `json:"secrets,omitempty"`
	// Roots are the certificate authorities of the endpoints' hosts, in PEM.
	Roots []byte `json:"roots,omitempty"`
}

// MaxSockets is what one message can carry beside the other descriptors.
const MaxSockets = 240

// Sockets are those that a policy needs.
func Sockets(p policy.NetworkPolicy, secrets []policy.Secret) ([]Socket, error) {
	out := []Socket{{Kind: SocketProxy, Addr: ProxyAddr}}
	for i, e := range Endpoints(secrets) {
		out = append(out, Socket{Kind: SocketSecret, Addr: netip.AddrPortFrom(e.Place, EndpointPort), Endpoint: i})
	}
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

// Hosts are the lines of the sandbox's /etc/hosts for endpoints and transparent mode,
// and the name server for names that a wildcard covers, if there is any.
func Hosts(p policy.NetworkPolicy, secrets []policy.Secret) (lines string, server netip.Addr) {
	for _, e := range Endpoints(secrets) {
		lines += e.Place.String() + " " + e.Name + "\n"
	}
	rules, err := p.ParsedRules()
	if err != nil || !p.Transparent {
		return lines, netip.Addr{}
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
func Environment(secrets []policy.Secret) map[string]string {
	url := "http://" + ProxyAddr.String()
	const local = "localhost,127.0.0.1,127.0.0.0/8,::1,worker,.secret.internal"
	env := map[string]string{
		"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": local,
		"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": local,
		"npm_config_proxy": url, "npm_config_https_proxy": url, "npm_config_noproxy": local,
		"YARN_HTTP_PROXY": url, "YARN_HTTPS_PROXY": url,
		"NODE_USE_ENV_PROXY": "1", // Node's own fetch and http ignore the others without it
		"YOI_SOCKS_PROXY":    "socks5h://" + ProxyAddr.String(),
	}
	for _, e := range Endpoints(secrets) {
		for _, s := range e.Secrets {
			env[endpointVariable(secrets[s].Handle)] = "http://" + e.Name
		}
	}
	return env
}

func endpointVariable(h policy.SecretHandle) string {
	return "YOI_ENDPOINT_" + policy.Secret{Handle: h, As: policy.SecretEnv}.Target()
}

// EndpointPort is where endpoints are served, each at an address of its own.
const EndpointPort = 80

// Endpoint is what the Worker has of one host to which requests go with secrets.
type Endpoint struct {
	// Host and Port are the real ones.
	Host string
	Port uint16
	// Name and Place are what the Worker uses.
	Name  string
	Place netip.Addr
	// Secrets are indexes of the headers that are added.
	Secrets []int
}

// Endpoints are those of a policy's header secrets: one for each host.
func Endpoints(secrets []policy.Secret) []Endpoint {
	var out []Endpoint
	for i, s := range secrets {
		host, port, named := strings.Cut(s.Host, ":")
		n, err := strconv.ParseUint(port, 10, 16)
		if !named {
			n, err = 443, nil
		}
		if err != nil {
			continue // it was validated
		}
		at := slices.IndexFunc(out, func(e Endpoint) bool { return e.Host == host && e.Port == uint16(n) })
		if at < 0 {
			at = len(out)
			e := Endpoint{Host: host, Port: uint16(n), Name: host + ".secret.internal", Place: netip.AddrFrom4([4]byte{127, 17, 0, byte(at + 1)})}
			if e.Port != 443 {
				e.Name = "p" + strconv.Itoa(int(e.Port)) + "." + e.Name
			}
			out = append(out, e)
		}
		out[at].Secrets = append(out[at].Secrets, i)
	}
	return out
}
