package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/idna"
)

// NetworkMode is what a Worker can reach.
type NetworkMode string

const (
	NetworkNone      NetworkMode = "none"      // loopback only
	NetworkAllowlist NetworkMode = "allowlist" // what the rules name, through a proxy outside
	NetworkHost      NetworkMode = "host"
)

// NetworkPolicy is a mode and, for allowlist, its rules: see ParseNetworkRule.
type NetworkPolicy struct {
	Mode  NetworkMode `json:"mode"`
	Rules []string    `json:"rules,omitempty"`
	// Transparent also serves the rules at addresses of the sandbox's own, under the
	// names themselves, for programs that know of no proxy.
	Transparent bool `json:"transparent,omitempty"`
	// MaxBytes bounds what goes through in both directions together; 0 is no limit.
	MaxBytes uint64 `json:"max_bytes,omitempty"`
	// MaxConnections bounds those open at once; 0 is DefaultConnections.
	MaxConnections int `json:"max_connections,omitempty"`
	// IdleTimeout closes a connection over which nothing goes; nanoseconds in JSON, 0
	// is DefaultIdleTimeout.
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
}

// The bounds of an allowlist.
const (
	MaxNetworkRules    = 256
	DefaultConnections = 256
	MaxConnections     = 4096
	DefaultIdleTimeout = 10 * time.Minute
)

// With is the policy of one Worker that may reach more than its workspace's others.
func (p NetworkPolicy) With(rules []string) (NetworkPolicy, error) {
	if len(rules) == 0 {
		return p, nil
	}
	if p.Mode == NetworkHost {
		return p, Errorf(CodePolicyInvalid, "policy.network", "the workspace's Workers have the host's network already").
			WithHint("Leave the rules out.")
	}
	p.Mode, p.Rules = NetworkAllowlist, slices.Concat(p.Rules, rules)
	p = p.normalize()
	return p, p.validate("policy.network")
}

// normalize writes each rule in its one spelling. Rules that are none stay as they
// are, for Validate to refuse.
func (p NetworkPolicy) normalize() NetworkPolicy {
	if p.Mode == "" {
		p.Mode = NetworkNone
		if len(p.Rules) > 0 {
			p.Mode = NetworkAllowlist
		}
	}
	if len(p.Rules) == 0 {
		return p
	}
	rules := make([]string, len(p.Rules))
	for i, s := range p.Rules {
		rules[i] = s
		if r, err := ParseNetworkRule(s); err == nil {
			rules[i] = r.String()
		}
	}
	slices.Sort(rules)
	p.Rules = slices.Compact(rules)
	return p
}

func (p NetworkPolicy) validate(op string) error {
	switch p.Mode {
	case NetworkNone, NetworkHost:
		if len(p.Rules) > 0 || p.Transparent || p.MaxBytes != 0 || p.MaxConnections != 0 || p.IdleTimeout != 0 {
			return Errorf(CodePolicyInvalid, op, "network rules and limits go with the mode allowlist")
		}
		return nil
	case NetworkAllowlist:
	default:
		return Errorf(CodePolicyInvalid, op, "%q is no network mode", Printable(string(p.Mode))).
			WithHint("Use none, allowlist or host.")
	}
	switch {
	case len(p.Rules) > MaxNetworkRules:
		return Errorf(CodePolicyInvalid, op, "more than %d network rules", MaxNetworkRules)
	case p.MaxConnections < 0 || p.MaxConnections > MaxConnections:
		return Errorf(CodePolicyInvalid, op, "max_connections is not between 0 and %d", MaxConnections)
	case p.IdleTimeout != 0 && (p.IdleTimeout < time.Second || p.IdleTimeout > 24*time.Hour):
		return Errorf(CodePolicyInvalid, op, "idle_timeout is not between a second and a day")
	case p.MaxBytes > 1<<62:
		return Errorf(CodePolicyInvalid, op, "max_bytes is too large")
	}
	_, err := p.ParsedRules()
	return err
}

// ValidateResolvers checks the ADDRESS:PORT of name servers.
func ValidateResolvers(list []string) error {
	if len(list) > 8 {
		return Errorf(CodeConfigInvalid, "policy.resolvers", "more than 8 name servers")
	}
	for _, s := range list {
		if a, err := netip.ParseAddrPort(s); err != nil || a.Port() == 0 {
			return Errorf(CodeConfigInvalid, "policy.resolvers", "%q is not ADDRESS:PORT of a name server", Printable(s))
		}
	}
	return nil
}

// ParsedRules are the rules, parsed.
func (p NetworkPolicy) ParsedRules() ([]NetworkRule, error) {
	out := make([]NetworkRule, 0, len(p.Rules))
	for _, s := range p.Rules {
		r, err := ParseNetworkRule(s)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// NetworkRule is one destination of an allowlist.
type NetworkRule struct {
	// Name is a host name in lower-case ASCII, a Wildcard's without its "*.": that
	// stands for one label or more. It is empty if Addr is set.
	Name     string
	Wildcard bool
	// Addr is the address itself, if the rule names one.
	Addr netip.Addr
	Port uint16
	// Within are the ranges that Name may lead to although they are of no public
	// address: a private network, the host itself.
	Within []netip.Prefix
}

// ParseNetworkRule reads HOST:PORT[@PREFIX[,PREFIX…]]. HOST is a name, "*." and a
// name, an IPv4 address in dotted decimal, or an IPv6 address in brackets. A name
// in other letters than ASCII's is turned into its A-labels (UTS 46, RFC 5891), and
// refused if its letters are of more than one script, or of one whose letters all
// look like Latin ones: what it looks like is not what it is.
func ParseNetworkRule(s string) (NetworkRule, error) {
	var r NetworkRule
	bad := func(why string) (NetworkRule, error) {
		return NetworkRule{}, Errorf(CodeNetworkRuleInvalid, "policy.network", "%q %s", Printable(s), why).With("rule", Printable(s))
	}
	dest, within, ranged := strings.Cut(s, "@")
	if len(s) > 1024 {
		return NetworkRule{}, Errorf(CodeNetworkRuleInvalid, "policy.network", "a rule is longer than 1024 bytes")
	}
	host, port, ok := cutPort(dest)
	if !ok {
		return bad("is not HOST:PORT")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || port[0] < '1' || port[0] > '9' {
		return bad("has no port between 1 and 65535")
	}
	r.Port = uint16(n)
	if ranged {
		for p := range strings.SplitSeq(within, ",") {
			prefix, err := parseWithin(p)
			if err != nil {
				return bad("has a range that is no address and no prefix such as 10.1.0.0/16")
			}
			r.Within = append(r.Within, prefix)
		}
		if len(r.Within) > 16 {
			return bad("has more than 16 ranges")
		}
	}
	if v6, bracketed := strings.CutPrefix(host, "["); bracketed {
		a, err := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		switch {
		case err != nil || !strings.HasSuffix(v6, "]") || !a.Is6() || a.Zone() != "":
			return bad("has no IPv6 address in its brackets")
		case a.Is4In6():
			return bad("is an IPv4 address in IPv6's clothes: write it as IPv4")
		}
		r.Addr = a
	} else if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		r.Addr = a
	}
	if r.Addr.IsValid() {
		if ranged {
			return bad("is an address, which needs no range")
		}
		return r, nil
	}
	host, r.Wildcard = strings.CutPrefix(host, "*.")
	if why := r.setName(host); why != "" {
		return bad(why)
	}
	return r, nil
}

func parseWithin(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err == nil && p.Addr().Is4In6() {
		return p, strconv.ErrSyntax
	}
	return p.Masked(), err
}

// cutPort splits at the last colon, which is not one of an IPv6 address without
// brackets.
func cutPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 {
		return "", "", false
	}
	host, port = s[:i], s[i+1:]
	if strings.Contains(host, ":") && host[0] != '[' {
		return "", "", false
	}
	return host, port, port != ""
}

func (r *NetworkRule) setName(host string) (why string) {
	if strings.ContainsFunc(host, func(c rune) bool { return c >= 0x80 }) {
		if why := lookAlike(host); why != "" {
			return why
		}
		a, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "is not a name that IDNA allows"
		}
		host = a
	}
	name, ok := CanonicalName(host)
	if !ok || name != strings.ToLower(host) {
		return "is not a host name"
	}
	for label := range strings.SplitSeq(name, ".") {
		if !strings.HasPrefix(label, "xn--") {
			continue
		}
		// A-labels that came as such are held to the same.
		u, err := idna.Lookup.ToUnicode(label)
		if err != nil {
			return "has a label that only looks like an A-label"
		}
		if why := lookAlike(u); why != "" {
			return why
		}
	}
	if r.Wildcard && !strings.Contains(name, ".") {
		return "stands for a whole top-level domain"
	}
	r.Name = name
	return ""
}

// CanonicalName is a host name as rules have it: lower-case letters, digits and
// hyphens (underscores too, which names in use have), without a final dot. It is
// false for what is no name, and for what some resolver takes for an address: a
// last label that is a number, decimal, octal or hexadecimal (inet_aton(3)).
func CanonicalName(s string) (string, bool) {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if s == "" || len(s) > 253 {
		return "", false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false
		}
		for i := 0; i < len(label); i++ {
			c := label[i]
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return "", false
			}
		}
		last = label
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok && strings.Trim(hex, "0123456789abcdef") == "" {
		return "", false
	}
	return s, strings.Trim(last, "0123456789") != ""
}

// scripts that are written together in one name.
var companions = map[string]string{"Hiragana": "Han", "Katakana": "Han", "Bopomofo": "Han", "Hangul": "Han"}

// latinTwins are the letters of other scripts that look like Latin ones. A label of
// nothing else is meant to be taken for another.
const latinTwins = "аьԁеһіјӏкмоԛпрѕтухԝвгсʏзԍյօսհոցքզԛαικνορτυχγηωεѡ"

// lookAlike says why a name in letters of other scripts is refused.
func lookAlike(name string) string {
	for label := range strings.SplitSeq(strings.ToLower(name), ".") {
		found := map[string]bool{}
		twins := true
		for _, c := range label {
			if c == '-' || (c >= '0' && c <= '9') {
				continue
			}
			twins = twins && strings.ContainsRune(latinTwins, c)
			if unicode.In(c, unicode.Common, unicode.Inherited) {
				if c >= 0x80 && !unicode.In(c, unicode.Mn) && c != 'ー' && c != '・' {
					return "has a character that is no letter"
				}
				continue
			}
			found[scriptOf(c)] = true
		}
		for s := range found {
			if base := companions[s]; base != "" {
				delete(found, s)
				found[base] = true
			}
		}
		if len(found) > 1 {
			return "has a label that mixes scripts"
		}
		if twins && !found["Latin"] && len(found) == 1 {
			return "has a label whose letters all look like Latin ones"
		}
	}
	return ""
}

func scriptOf(c rune) string {
	for name, table := range unicode.Scripts {
		if unicode.Is(table, c) {
			return name
		}
	}
	return "unknown"
}

// String is the rule in its one spelling.
func (r NetworkRule) String() string {
	host := r.Name
	switch {
	case r.Addr.Is4():
		host = r.Addr.String()
	case r.Addr.Is6():
		host = "[" + r.Addr.String() + "]"
	case r.Wildcard:
		host = "*." + r.Name
	}
	s := host + ":" + strconv.Itoa(int(r.Port))
	sep := "@"
	for _, p := range r.Within {
		s += sep + p.String()
		sep = ","
	}
	return s
}

// MatchesName reports whether the rule is about a name that CanonicalName returned,
// whatever the port.
func (r NetworkRule) MatchesName(name string) bool {
	switch {
	case r.Name == "":
		return false
	case r.Wildcard:
		return strings.HasSuffix(name, "."+r.Name)
	}
	return name == r.Name
}

// Special reports whether the rule reaches beyond public addresses.
func (r NetworkRule) Special() bool {
	return len(r.Within) > 0 || r.Addr.IsValid() && SpecialAddress(r.Addr) != ""
}

// NetworkUsage is what a Worker's connections by an allowlist came to.
type NetworkUsage struct {
	// Allowed and Refused count connections, and requests of plain HTTP.
	Allowed uint64 `json:"allowed"`
	Refused uint64 `json:"refused"`
	// BytesOut are from the Worker, BytesIn to it.
	BytesOut uint64 `json:"bytes_out"`
	BytesIn  uint64 `json:"bytes_in"`
	// Unlogged counts decisions that the log had no room for.
	Unlogged uint64 `json:"unlogged,omitempty"`
	// Rules are in the order of the policy's.
	Rules []NetworkRuleUsage `json:"rules,omitempty"`
}

// NetworkRuleUsage is what one rule was used for.
type NetworkRuleUsage struct {
	Rule     string `json:"rule"`
	Allowed  uint64 `json:"allowed"`
	BytesOut uint64 `json:"bytes_out"`
	BytesIn  uint64 `json:"bytes_in"`
}
