package backend

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Alive asks the server that listens on l as a client does, with a token that there is
// not: the answer is a refusal, and took the listener, the store and all on the way. It
// asks no Runtime, which would be woken by it. The status is for `systemctl status`.
func (b *Backend) Alive(ctx context.Context, l net.Listener) (status string, err error) {
	s := b.settings()
	scheme, host := "http", "localhost"
	if b.tls {
		scheme = "https"
	}
	for h := range s.hosts {
		host = h
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+host+"/api/w", nil)
	if err != nil {
		return "", policy.Errorf(policy.CodeInternal, "backend.alive", "the question cannot be asked").Because(err)
	}
	req.Header.Set("Authorization", "Bearer "+policy.NewID("tk-"))
	var d net.Dialer
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, l.Addr().Network(), l.Addr().String())
		},
		// Of itself it needs no proof, and it tells no secret.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return "", policy.Errorf(policy.CodeUnavailable, "backend.alive", "the Backend does not answer itself on %s", l.Addr()).Because(err).
			WithHint("If its unit has IPAddressDeny=, that has to allow the Backend's own address.")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusTooManyRequests {
		return "", policy.Errorf(policy.CodeUnavailable, "backend.alive", "the Backend answers with the status %d", resp.StatusCode)
	}
	return b.statusLine(s), nil
}

func (b *Backend) statusLine(s *settings) string {
	line := fmt.Sprintf("%s, %s, %s", count(len(s.cfg.Workspaces), "workspace"), count(b.creations.underWay(), "creation"), count(len(s.streams), "live stream"))
	if amiss := b.amiss.Load(); amiss != nil {
		line += "; degraded: " + *amiss
	}
	return line
}
