/** Base64 to and from 16-bit PCM, as the Realtime protocol carries sound. */

/** @param {Int16Array} pcm little-endian on every machine that runs a browser @returns {string} */
export function encodePcm(pcm) {
  return btoa(String.fromCharCode(...new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength)));
}

/** @param {string} text @returns {Float32Array} samples in −1 … 1 */
export function decodePcm(text) {
  const bytes = atob(text);
  const samples = new Float32Array(bytes.length >> 1);
  for (let i = 0; i < samples.length; i += 1) {
    const value = bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8);
    samples[i] = ((value << 16) >> 16) / 32768;
  }
  return samples;
}
