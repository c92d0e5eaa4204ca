package policy_test

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestValidateSecrets(t *testing.T) {
	header := func(edit func(*policy.Secret)) policy.Secret {
		s := policy.Secret{Handle: "api", As: policy.SecretHTTPHeader, Host: "api.example.org"}
		edit(&s)
		return s
	}
	for name, c := range map[string]struct {
		list    []policy.Secret
		network policy.NetworkMode
		good    bool
	}{
		"none":                   {nil, policy.NetworkNone, true},
		"file and variable":      {[]policy.Secret{{Handle: "a", As: "file"}, {Handle: "a", As: "env"}}, policy.NetworkNone, true},
		"one place twice":        {[]policy.Secret{{Handle: "a", As: "file"}, {Handle: "b", As: "file", Name: "a"}}, policy.NetworkNone, false},
		"no delivery":            {[]policy.Secret{{Handle: "a"}}, policy.NetworkNone, false},
		"a path as handle":       {[]policy.Secret{{Handle: "../a", As: "file"}}, policy.NetworkNone, false},
		"a path as name":         {[]policy.Secret{{Handle: "a", As: "file", Name: "../a"}}, policy.NetworkNone, false},
		"dots as name":           {[]policy.Secret{{Handle: "a", As: "file", Name: ".."}}, policy.NetworkNone, false},
		"an escape in the name":  {[]policy.Secret{{Handle: "a", As: "file", Name: "a\x1b[m"}}, policy.NetworkNone, false},
		"a variable with =":      {[]policy.Secret{{Handle: "a", As: "env", Name: "A=B"}}, policy.NetworkNone, false},
		"a variable from digits": {[]policy.Secret{{Handle: "7up", As: "env"}}, policy.NetworkNone, false},
		"a host for a file":      {[]policy.Secret{{Handle: "a", As: "file", Host: "x.example"}}, policy.NetworkNone, false},
		"a header":               {[]policy.Secret{header(func(*policy.Secret) {})}, policy.NetworkAllowlist, true},
		"a header, no proxy":     {[]policy.Secret{header(func(*policy.Secret) {})}, policy.NetworkHost, false},
		"two hosts": {[]policy.Secret{header(func(*policy.Secret) {}), header(func(s *policy.Secret) { s.Host = "b.example.org:8443" })},
			policy.NetworkAllowlist, true},
		"one header twice": {[]policy.Secret{header(func(*policy.Secret) {}), header(func(s *policy.Secret) { s.Name = "authorization" })},
			policy.NetworkAllowlist, false},
		"no host":           {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "" })}, policy.NetworkAllowlist, false},
		"every host":        {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "*.example.org" })}, policy.NetworkAllowlist, false},
		"an address":        {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "127.0.0.1" })}, policy.NetworkAllowlist, false},
		"a hex address":     {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "0x7f000001" })}, policy.NetworkAllowlist, false},
		"port 0":            {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "a.example:0" })}, policy.NetworkAllowlist, false},
		"port 99999999999":  {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "a.example:99999999999" })}, policy.NetworkAllowlist, false},
		"userinfo":          {[]policy.Secret{header(func(s *policy.Secret) { s.Host = "x@a.example" })}, policy.NetworkAllowlist, false},
		"a second header":   {[]policy.Secret{header(func(s *policy.Secret) { s.Name = "X: y\r\nZ" })}, policy.NetworkAllowlist, false},
		"the Host":          {[]policy.Secret{header(func(s *policy.Secret) { s.Name = "hOST" })}, policy.NetworkAllowlist, false},
		"a line in prefix":  {[]policy.Secret{header(func(s *policy.Secret) { s.Prefix = "Bearer\r\n" })}, policy.NetworkAllowlist, false},
		"Bearer":            {[]policy.Secret{header(func(s *policy.Secret) { s.Prefix = "Bearer " })}, policy.NetworkAllowlist, true},
		"more than enough":  {make([]policy.Secret, policy.MaxSecrets+1), policy.NetworkNone, false},
		"an unknown way":    {[]policy.Secret{{Handle: "a", As: "argv"}}, policy.NetworkNone, false},
		"a very long label": {[]policy.Secret{header(func(s *policy.Secret) { s.Host = strings.Repeat("a", 64) + ".example" })}, policy.NetworkAllowlist, false},
	} {
		if err := policy.ValidateSecrets(c.list, c.network); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretTarget(t *testing.T) {
	for s, want := range map[policy.Secret]string{
		{Handle: "npm-token", As: policy.SecretFile}:              "npm-token",
		{Handle: "npm-token.2", As: policy.SecretEnv}:             "NPM_TOKEN_2",
		{Handle: "a", As: policy.SecretEnv, Name: "b"}:            "b",
		{Handle: "a", As: policy.SecretHTTPHeader, Host: "x.org"}: "Authorization",
	} {
		if got := s.Target(); got != want {
			t.Errorf("%v: %q", s, got)
		}
	}
}
