// Package backend is a reference Workspace Backend: what stands between people
// with a browser and one or more Runtimes.
//
// It exists because a Runtime answers whoever may open its socket, takes paths of
// the host as repositories, and knows no people. The Backend has the list of the
// repositories, strategies and policies that a workspace may use, and the people
// who may; it turns their ids into a Runtime's requests and a Runtime's answers
// into summaries. What goes out is built field by field from safe values
// (views.go): no host path, no materialization request, no environment value, no
// token. Every failure is a problem document with a code of codes.go.
//
// It does not promise to hold a hostile operator of its own host, nor to keep a
// Worker's output secret from who may read the workspace. It has no privilege, is
// a client of package api only, and never touches a Runtime root.
//
// One request, top to bottom: server.go (host, origin, limits) → auth.go (who) →
// route.go (which, and may they) → api_*.go or ui_*.go (decode) → workspaces.go,
// creations.go, workers.go (act) → views.go (what may be seen).
package backend
