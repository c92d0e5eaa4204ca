package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/internal/secret"
	"yoi.dev/yoi-runtime/policy"
)

// endpoint is a host to which the Worker's requests go with secrets that it does not
// have: it speaks plain HTTP with us, we speak TLS with the host and believe only the
// operator's certificate authorities.
type endpoint struct {
	egress.Endpoint
	target    target
	headers   []secret.Given
	transport *http.Transport
}

func (s *server) newEndpoints(cfg egress.Config, values *os.File) ([]endpoint, error) {
	if len(cfg.Secrets) == 0 {
		return nil, nil
	}
	set, err := secret.Unpack(values, cfg.Secrets)
	values.Close()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cfg.Roots) {
		return nil, errors.New("there is no certificate authority to believe")
	}
	var out []endpoint
	for _, e := range egress.Endpoints(cfg.Secrets) {
		ep := endpoint{Endpoint: e, target: s.gate.endpoint(e), transport: s.newTransport()}
		ep.transport.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: e.Host, MinVersion: tls.VersionTLS12}
		for _, i := range e.Secrets {
			ep.headers = append(ep.headers, set[i])
		}
		out = append(out, ep)
	}
	return out, nil
}

// endpointOf finds the endpoint that a request through the proxy is for: a program
// that does not know NO_PROXY asks here.
func (s *server) endpointOf(req *http.Request) *endpoint {
	rest, ok := cutScheme(req.RequestURI)
	if !ok {
		return nil
	}
	authority, _, _ := strings.Cut(rest, "/")
	authority, _, _ = strings.Cut(authority, "?")
	for i := range s.endpoints {
		if s.endpoints[i].named(authority) {
			return &s.endpoints[i]
		}
	}
	return nil
}

// named reports whether an authority is the endpoint's own, as the Worker has it.
func (e *endpoint) named(authority string) bool {
	host, port, ok := splitAuthority(authority, egress.EndpointPort)
	return ok && port == egress.EndpointPort && (sameHost(host, e.Name) || host == e.Place.String())
}

// withSecret passes a request on to the endpoint's host.
func (s *server) withSecret(c *conn, req *http.Request, h head, e *endpoint) bool {
	var err error
	switch {
	case !e.named(h.host) || req.URL.User != nil:
		err = refusal(egress.ReasonHost)
	case req.Method == http.MethodTrace || req.Method == http.MethodConnect:
		err = refusal(egress.ReasonRequest) // the answer to TRACE is the request, header and all
	case !strings.HasPrefix(req.URL.Path, "/") && req.URL.Path != "":
		err = refusal(egress.ReasonRequest)
	case s.left() == 0:
		err = refusal(egress.ReasonBytes)
	}
	if err != nil {
		s.deny(c, egress.ViaSecret, e.Host, e.Port, err)
		return false
	}
	out := req.WithContext(context.WithValue(background, targetKey{}, e.target))
	out.URL = &url.URL{Scheme: "https", Host: e.target.String(), Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery}
	if out.URL.Path == "" {
		out.URL.Path = "/"
	}
	out.Host = e.Host
	if e.Port != 443 {
		out.Host = e.target.String()
	}
	removeHops(req.Header) // before ours is there, or Connection could name it
	for _, g := range e.headers {
		out.Header.Del(g.Target())
		out.Header.Set(g.Target(), g.Prefix+string(g.Value.Bytes()))
	}
	return s.forward(c, egress.ViaSecret, req, out, e.target, e.transport, e.redirect)
}

// redirect has the Worker follow a redirect within the host through the endpoint,
// where the header is added again. One to elsewhere is the Worker's own to follow,
// by its rules and without the secret.
func (e *endpoint) redirect(h http.Header) {
	u, err := url.Parse(h.Get("Location"))
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return
	}
	host, port, ok := splitAuthority(u.Host, 443)
	if name, good := policy.CanonicalName(host); ok && good && name == e.Host && port == e.Port && u.User == nil {
		u.Scheme, u.Host = "http", e.Name
		h.Set("Location", u.String())
	}
}
