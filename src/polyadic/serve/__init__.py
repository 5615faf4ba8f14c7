"""`polyadic serve`: a page to see, change, ask and annotate the relations of photos, and its JSON API.

    messages   what clients send, and its bounds          answers   the same values as the Python API, as JSON
    guard      who may ask: host, origin, token, sizes    folder    annotations of a folder of photos on disk
    worker     one thread that computes, a bounded queue  run       the view of an evaluated run
    app        the routes and the server                  static/   the page: plain JavaScript modules and SVG

Needs the extra `serve`. Imports nothing heavy here.
"""
