// Browsers give no Worker to pages opened as files; there the search runs in a hidden frame instead.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<script></script>"; // a document of our own origin
      this.ready = new Promise((done) => {
        frame.onload = () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.src = url;
          script.onload = () => done(inner);
          inner.document.head.append(script);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
